//! Messages with descriptors over sequenced-packet Unix sockets.
//!
//! One message is one `sendmsg`, which carries descriptors as SCM_RIGHTS. The caller's buffer
//! bounds the size. A longer message is an error and is never truncated.

use std::io;
use std::mem::MaybeUninit;
use std::os::fd::{AsRawFd, BorrowedFd, FromRawFd, OwnedFd, RawFd};

/// The maximum number of descriptors in one message. The kernel's own limit is 253.
pub(crate) const FDS_MAX: usize = 64;

#[repr(C, align(8))]
struct Control([u8; 24 + FDS_MAX * 4 + 8]);

/// Sends `bytes` and `fds` as one message. Blocks unless `flags` or the socket say otherwise. If
/// the peer has closed its end, this returns an error and never raises a signal.
pub(crate) fn send(
    socket: BorrowedFd<'_>,
    bytes: &[u8],
    fds: &[RawFd],
    flags: libc::c_int,
) -> io::Result<()> {
    if fds.len() > FDS_MAX {
        return Err(io::Error::from_raw_os_error(libc::ETOOMANYREFS));
    }
    let mut control = Control([0; 24 + FDS_MAX * 4 + 8]);
    let mut part = libc::iovec { iov_base: bytes.as_ptr().cast_mut().cast(), iov_len: bytes.len() };
    // SAFETY: an all-zero msghdr is valid.
    let mut header: libc::msghdr = unsafe { std::mem::zeroed() };
    header.msg_iov = &raw mut part;
    header.msg_iovlen = 1;
    if !fds.is_empty() {
        let payload = std::mem::size_of_val(fds) as libc::c_uint;
        header.msg_control = (&raw mut control).cast();
        // SAFETY: pure arithmetic; the buffer is large enough for FDS_MAX descriptors.
        header.msg_controllen = unsafe { libc::CMSG_SPACE(payload) } as _;
        // SAFETY: the header points at our aligned, large enough control buffer.
        unsafe {
            let first = libc::CMSG_FIRSTHDR(&raw const header);
            (*first).cmsg_level = libc::SOL_SOCKET;
            (*first).cmsg_type = libc::SCM_RIGHTS;
            (*first).cmsg_len = libc::CMSG_LEN(payload) as _;
            std::ptr::copy_nonoverlapping(
                fds.as_ptr().cast::<u8>(),
                libc::CMSG_DATA(first),
                payload as usize,
            );
        }
    }
    loop {
        // SAFETY: header, part and control buffer live through the call.
        let sent = unsafe {
            libc::sendmsg(socket.as_raw_fd(), &raw const header, flags | libc::MSG_NOSIGNAL)
        };
        if sent >= 0 {
            return Ok(());
        }
        let error = io::Error::last_os_error();
        if error.kind() != io::ErrorKind::Interrupted {
            return Err(error);
        }
    }
}

/// Receives one message: its length in `buffer` and its descriptors (close-on-exec). A length of 0
/// without descriptors means that the peer has closed its end.
pub(crate) fn receive(
    socket: BorrowedFd<'_>,
    buffer: &mut [u8],
) -> io::Result<(usize, Vec<OwnedFd>)> {
    let mut control = MaybeUninit::<Control>::zeroed();
    let mut part = libc::iovec { iov_base: buffer.as_mut_ptr().cast(), iov_len: buffer.len() };
    // SAFETY: an all-zero msghdr is valid.
    let mut header: libc::msghdr = unsafe { std::mem::zeroed() };
    header.msg_iov = &raw mut part;
    header.msg_iovlen = 1;
    header.msg_control = control.as_mut_ptr().cast();
    header.msg_controllen = size_of::<Control>() as _;
    let got = loop {
        // SAFETY: header, buffer and control buffer live through the call.
        let got =
            unsafe { libc::recvmsg(socket.as_raw_fd(), &raw mut header, libc::MSG_CMSG_CLOEXEC) };
        if got >= 0 {
            break got as usize;
        }
        let error = io::Error::last_os_error();
        if error.kind() != io::ErrorKind::Interrupted {
            return Err(error);
        }
    };
    let mut fds = Vec::new();
    // SAFETY: the kernel has filled the control buffer; the macros walk it within its length, and
    // each descriptor found there is new and ours.
    unsafe {
        let mut entry = libc::CMSG_FIRSTHDR(&raw const header);
        while !entry.is_null() {
            if (*entry).cmsg_level == libc::SOL_SOCKET && (*entry).cmsg_type == libc::SCM_RIGHTS {
                let bytes = (*entry).cmsg_len as usize - libc::CMSG_LEN(0) as usize;
                let data = libc::CMSG_DATA(entry).cast::<RawFd>();
                for index in 0..bytes / size_of::<RawFd>() {
                    fds.push(OwnedFd::from_raw_fd(data.add(index).read_unaligned()));
                }
            }
            entry = libc::CMSG_NXTHDR(&raw const header, entry);
        }
    }
    if header.msg_flags & (libc::MSG_TRUNC | libc::MSG_CTRUNC) != 0 {
        return Err(io::Error::from_raw_os_error(libc::EMSGSIZE));
    }
    Ok((got, fds))
}
