//! The bytes of a layer or an archive, whether they are compressed or not.

use std::io::{self, BufRead, BufReader, Read};
use std::sync::atomic::{AtomicBool, Ordering};

use flate2::bufread::MultiGzDecoder;
use ruzstd::decoding::errors::{FrameDecoderError, ReadFrameHeaderError};
use ruzstd::decoding::{BlockDecodingStrategy, FrameDecoder};
use sha2::{Digest as _, Sha256};

use crate::ImageError;
use crate::documents::hex_digest;

/// The most memory that a zstd stream may ask for. `zstd -19` needs 8 MiB.
const ZSTD_WINDOW_BYTES_MAX: u64 = 32 << 20;
/// The highest ratio of unpacked to packed size. Text reaches 20, and tables of zeros in honest
/// images are small.
const RATIO_MAX: u64 = 250;
/// The ratio limit does not apply to the first unpacked bytes, up to this number.
const RATIO_FREE_BYTES: u64 = 64 << 20;

/// Reads unpacked bytes, counts and hashes them, and ends with an error when a limit is exceeded or
/// the caller no longer waits.
pub(crate) struct Unpacked<'a> {
    input: Input<'a>,
    hasher: Sha256,
    bytes: u64,
    is_cancelled: &'a AtomicBool,
}

enum Input<'a> {
    Plain(Packed<'a>),
    Gzip(Box<MultiGzDecoder<Packed<'a>>>),
    Zstd(Box<Zstd<'a>>),
}

type Packed<'a> = BufReader<Counted<&'a mut (dyn Read + 'a)>>;

impl<'a> Unpacked<'a> {
    /// Recognises the compression by the first bytes of the input.
    pub(crate) fn new(
        input: &'a mut (dyn Read + 'a),
        is_cancelled: &'a AtomicBool,
    ) -> io::Result<Self> {
        let mut input = BufReader::with_capacity(64 << 10, Counted { input, bytes: 0 });
        // One read returns at least six bytes, unless the file is shorter.
        let first = input.fill_buf()?;
        let input = if first.starts_with(&[0x1f, 0x8b]) {
            Input::Gzip(Box::new(MultiGzDecoder::new(input)))
        } else if is_zstd(first) {
            Input::Zstd(Box::new(Zstd::new(input)))
        } else if let Some(name) = unsupported(first) {
            let reason = format!("the compression {name} is not supported (gzip and zstd are)");
            return Err(refused(reason));
        } else {
            Input::Plain(input)
        };
        Ok(Self { input, hasher: Sha256::new(), bytes: 0, is_cancelled })
    }

    /// The digest of what has been read.
    pub(crate) fn digest(&self) -> String {
        hex_digest(&self.hasher.clone().finalize())
    }

    fn packed_bytes(&self) -> u64 {
        match &self.input {
            Input::Plain(input) => input.get_ref().bytes,
            Input::Gzip(decoder) => decoder.get_ref().get_ref().bytes,
            Input::Zstd(zstd) => zstd.input.get_ref().bytes,
        }
    }
}

impl Read for Unpacked<'_> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        if self.is_cancelled.load(Ordering::Relaxed) {
            return Err(io::Error::other(ImageError::Cancelled));
        }
        let count = match &mut self.input {
            Input::Plain(input) => input.read(buffer)?,
            Input::Gzip(decoder) => decoder.read(buffer).map_err(|error| broken("gzip", error))?,
            Input::Zstd(zstd) => zstd.read(buffer)?,
        };
        self.hasher.update(&buffer[..count]);
        self.bytes += count as u64;
        if self.bytes > RATIO_FREE_BYTES
            && self.bytes > self.packed_bytes().saturating_mul(RATIO_MAX)
        {
            let text = format!("it unpacks to more than {RATIO_MAX} times its size");
            return Err(refused(text));
        }
        Ok(count)
    }
}

/// An error of the layer itself. The caller adds its number.
fn refused(reason: String) -> io::Error {
    io::Error::other(ImageError::Layer { layer: 0, reason })
}

fn broken(kind: &str, error: io::Error) -> io::Error {
    match error.kind() {
        io::ErrorKind::InvalidInput | io::ErrorKind::InvalidData => {
            refused(format!("its {kind} data is broken"))
        }
        io::ErrorKind::UnexpectedEof => refused(format!("its {kind} data is cut off")),
        _ => error,
    }
}

fn is_zstd(first: &[u8]) -> bool {
    // A frame with data, or a frame that decoders skip.
    first.starts_with(&[0x28, 0xb5, 0x2f, 0xfd])
        || matches!(first, [0x50..=0x5f, 0x2a, 0x4d, 0x18, ..])
}

fn unsupported(first: &[u8]) -> Option<&'static str> {
    match first {
        [b'B', b'Z', b'h', b'1'..=b'9', 0x31, 0x41, ..] => Some("bzip2"),
        [0xfd, b'7', b'z', b'X', b'Z', 0, ..] => Some("xz"),
        [0x04, 0x22, 0x4d, 0x18, ..] => Some("lz4"),
        [0x5d, 0, 0, _, _, _, ..] => Some("lzma"),
        _ => None,
    }
}

struct Counted<R> {
    input: R,
    bytes: u64,
}

impl<R: Read> Read for Counted<R> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let count = self.input.read(buffer)?;
        self.bytes += count as u64;
        Ok(count)
    }
}

/// Any number of frames of zstd.
struct Zstd<'a> {
    input: Packed<'a>,
    decoder: FrameDecoder,
    is_in_frame: bool,
}

impl<'a> Zstd<'a> {
    fn new(input: Packed<'a>) -> Self {
        let mut decoder = FrameDecoder::new();
        decoder.set_max_window_size(ZSTD_WINDOW_BYTES_MAX);
        Self { input, decoder, is_in_frame: false }
    }

    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        if buffer.is_empty() {
            return Ok(0);
        }
        loop {
            if !self.is_in_frame && !self.begin()? {
                return Ok(0);
            }
            let Self { input, decoder, .. } = self;
            while decoder.can_collect() == 0 && !decoder.is_finished() {
                decoder
                    .decode_blocks(&mut *input, BlockDecodingStrategy::UptoBlocks(1))
                    .map_err(|error| zstd_failed(&error))?;
            }
            let count = decoder.read(buffer)?;
            if count != 0 {
                return Ok(count);
            }
            self.is_in_frame = false;
        }
    }

    /// Skips frames without data and begins the next frame. Returns whether there is one.
    fn begin(&mut self) -> io::Result<bool> {
        loop {
            if self.input.fill_buf()?.is_empty() {
                return Ok(false);
            }
            match self.decoder.init(&mut self.input) {
                Ok(()) => {
                    self.is_in_frame = true;
                    return Ok(true);
                }
                Err(FrameDecoderError::ReadFrameHeaderError(ReadFrameHeaderError::SkipFrame {
                    length,
                    ..
                })) => {
                    let length = u64::from(length);
                    let mut skipped = self.input.by_ref().take(length);
                    if io::copy(&mut skipped, &mut io::sink())? != length {
                        return Err(refused("its zstd data is cut off".to_owned()));
                    }
                }
                Err(error) => return Err(zstd_failed(&error)),
            }
        }
    }
}

fn zstd_failed(error: &FrameDecoderError) -> io::Error {
    let text = match error {
        FrameDecoderError::WindowSizeTooBig { .. } => {
            "it was compressed with a zstd window of more than 32 MiB (--long, --ultra)"
        }
        FrameDecoderError::ReadFrameHeaderError(ReadFrameHeaderError::BadMagicNumber(_)) => {
            "data follows its zstd data"
        }
        // The library's errors have many forms for the end of the input.
        error if error.to_string().contains("fill whole buffer") => "its zstd data is cut off",
        _ => "its zstd data is broken",
    };
    refused(text.to_owned())
}

#[cfg(test)]
mod tests {
    use std::io::Write as _;

    use super::*;

    fn read(bytes: &[u8]) -> Result<Vec<u8>, String> {
        let never = AtomicBool::new(false);
        let mut input = bytes;
        let mut all = Vec::new();
        Unpacked::new(&mut input, &never)
            .and_then(|mut unpacked| unpacked.read_to_end(&mut all))
            .map_err(|error| ImageError::from(error).to_string())?;
        Ok(all)
    }

    fn gzip(bytes: &[u8]) -> Vec<u8> {
        let mut out = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::fast());
        out.write_all(bytes).unwrap();
        out.finish().unwrap()
    }

    fn zstd(bytes: &[u8]) -> Vec<u8> {
        ruzstd::encoding::compress_to_vec(bytes, ruzstd::encoding::CompressionLevel::Fastest)
    }

    /// Zeros that gzip has packed as tightly as it can, to a thousandth of their size.
    fn bomb(bytes: usize) -> Vec<u8> {
        let mut out = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::best());
        out.write_all(&vec![0; bytes]).unwrap();
        out.finish().unwrap()
    }

    #[test]
    fn forms() {
        let text = b"layer ".repeat(10_000);
        let skipped = [&[0x52, 0x2a, 0x4d, 0x18, 3, 0, 0, 0][..], b"xyz"].concat();
        for form in [
            text.clone(),
            gzip(&text),
            [gzip(&text[..6]), gzip(&text[6..])].concat(),
            zstd(&text),
            [skipped.clone(), zstd(&text[..60]), skipped, zstd(&text[60..])].concat(),
        ] {
            assert!(read(&form).unwrap() == text);
        }
        assert_eq!(read(b""), Ok(Vec::new()));
    }

    #[test]
    fn broken_forms() {
        let text = b"layer ".repeat(10_000);
        let cut = |bytes: Vec<u8>, by: usize| bytes[..bytes.len() - by].to_vec();
        for (form, reason) in [
            (cut(gzip(&text), 1), "its gzip data is cut off"),
            (cut(gzip(&text), 20), "its gzip data is cut off"),
            ([gzip(&text), b"rest of something".to_vec()].concat(), "its gzip data is broken"),
            (cut(zstd(&text), 9), "its zstd data is cut off"),
            ([zstd(&text), b"rest of something".to_vec()].concat(), "data follows its zstd data"),
            (b"BZh91AY&SY".to_vec(), "the compression bzip2 is not supported"),
            (b"\xfd7zXZ\0\0\0".to_vec(), "the compression xz is not supported"),
            (b"\x28\xb5\x2f\xfd".to_vec(), "its zstd data is"),
            // A window of 64 MiB.
            (b"\x28\xb5\x2f\xfd\x00\x80\x01\x00\x00\x00".to_vec(), "more than 32 MiB"),
            (bomb(65 << 20), "more than 250 times its size"),
        ] {
            let error = read(&form).map(|all| all.len()).expect_err(reason);
            assert!(error.contains(reason), "{reason}: {error}");
        }
    }

    #[test]
    fn a_cancelled_reader_stops() {
        let cancelled = AtomicBool::new(true);
        let mut input = &b"x"[..];
        let mut unpacked = Unpacked::new(&mut input, &cancelled).unwrap();
        assert!(unpacked.read(&mut [0; 1]).is_err());
    }
}
