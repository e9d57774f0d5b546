//! Archives that are too large for their resources: files named by their digests.

use std::io;
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};

/// The folder with the archives. Cheap to clone.
#[derive(Clone)]
pub(super) struct Archives(PathBuf);

impl Archives {
    /// Opens the folder, and creates it if it does not exist.
    pub(super) fn open(folder: &Path) -> io::Result<Self> {
        std::fs::create_dir_all(folder).map_err(|error| {
            io::Error::new(error.kind(), format!("{}: {error}", folder.display()))
        })?;
        Ok(Self(folder.to_owned()))
    }

    /// Stores an archive durably. Blocks.
    pub(super) fn put(&self, digest: &str, tar: &[u8]) -> io::Result<()> {
        let path = self.0.join(digest);
        // The archive's age starts again from zero, because the revision that needs the archive
        // does not exist yet (see `sweep`).
        if let Ok(there) = std::fs::File::options().append(true).open(&path) {
            return there.set_modified(SystemTime::now());
        }
        let mut file = tempfile::NamedTempFile::new_in(&self.0)?;
        io::Write::write_all(&mut file, tar)?;
        file.as_file().sync_all()?;
        file.persist(path).map_err(|error| error.error)?;
        std::fs::File::open(&self.0)?.sync_all()
    }

    /// Opens the archive with this digest. Also returns its length.
    pub(super) async fn open_one(&self, digest: &str) -> io::Result<(tokio::fs::File, u64)> {
        if !is_digest(digest) {
            return Err(io::ErrorKind::NotFound.into());
        }
        let file = tokio::fs::File::open(self.0.join(digest)).await?;
        let length = file.metadata().await?.len();
        Ok((file, length))
    }

    /// Removes every archive that `keep` does not name and that is older than `age`. A younger
    /// archive stays, because the controller may still be making its revision. Blocks.
    pub(super) fn sweep(&self, age: Duration, keep: impl Fn(&str) -> bool) -> io::Result<()> {
        for entry in std::fs::read_dir(&self.0)? {
            let entry = entry?;
            let is_old = entry.metadata()?.modified()?.elapsed().is_ok_and(|since| since >= age);
            let name = entry.file_name().into_string().unwrap_or_default();
            if is_old && is_digest(&name) && !keep(&name) {
                std::fs::remove_file(self.0.join(name))?;
            }
        }
        Ok(())
    }
}

fn is_digest(text: &str) -> bool {
    text.len() == 64 && text.bytes().all(|byte| matches!(byte, b'0'..=b'9' | b'a'..=b'f'))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn archives_are_found_by_their_digests_alone() {
        let folder = tempfile::tempdir().unwrap();
        let archives = Archives::open(&folder.path().join("a")).unwrap();
        let one = crate::source::digest(b"one");
        let two = crate::source::digest(b"two");
        archives.put(&one, b"one").unwrap();
        archives.put(&two, b"two").unwrap();
        archives.put(&one, b"one").unwrap();
        let length = async |digest: &str| archives.open_one(digest).await.map(|(_, length)| length);
        assert_eq!(length(&one).await.unwrap(), 3);
        std::fs::write(folder.path().join("secret"), "x").unwrap();
        assert!(length("../secret").await.is_err());
        archives.sweep(Duration::from_secs(60), |_| false).unwrap();
        assert!(length(&one).await.is_ok());
        // An old archive that is stored again counts as young.
        let path = folder.path().join("a").join(&two);
        let long_ago = SystemTime::now() - Duration::from_secs(3_600);
        std::fs::File::options().append(true).open(&path).unwrap().set_modified(long_ago).unwrap();
        archives.put(&two, b"two").unwrap();
        archives.sweep(Duration::from_secs(60), |_| false).unwrap();
        assert!(length(&two).await.is_ok());
        archives.sweep(Duration::ZERO, |digest| digest == two).unwrap();
        assert!(length(&one).await.is_err());
        assert!(length(&two).await.is_ok());
    }
}
