//! Checks whether the sums were signed with the right key.
//!
//! If the installation has a key, only that key counts. Otherwise, the caller must name a key or
//! accept a missing signature.

use std::path::{Path, PathBuf};

use minisign_verify::{Error, PublicKey, Signature};

use crate::args::Args;
use crate::failure::{Failure, SIGNATURE};
use crate::release::Release;

/// Checks the signature. Returns the file of the key, if a key was used.
pub(crate) fn check(
    release: &Release,
    trusted: &Path,
    args: &Args,
) -> Result<Option<PathBuf>, Failure> {
    let replace = format!(
        "to trust another key, run install.sh --public-key FILE of a release that \
                           is signed with it; the key of this installation is {}",
        trusted.display()
    );
    // A dangling link or an unreadable folder must not turn the check off, so only a missing file
    // counts as no key.
    let has_key = match std::fs::symlink_metadata(trusted) {
        Ok(_) => true,
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => false,
        Err(error) => return Err(Failure::file(trusted, &error)),
    };
    let file = if has_key {
        if args.unsigned {
            let text = "this installation has a trusted key, so an unsigned archive is refused";
            return Err(Failure::new(SIGNATURE, text, "leave out --unsigned"));
        }
        if let Some(other) = &args.public_key
            && read(other)? != read(trusted)?
        {
            let text = format!("{} is not the key that this installation trusts", other.display());
            return Err(Failure::new(SIGNATURE, text, replace));
        }
        trusted
    } else if let Some(file) = &args.public_key {
        file
    } else if args.unsigned {
        return Ok(None);
    } else {
        let text = "this installation has no trusted key, so the signature cannot be checked";
        let hint =
            "add --public-key FILE with the key of the project, or --unsigned to trust the archive";
        return Err(Failure::new(SIGNATURE, text, hint));
    };
    let key = read(file)?;
    let Some(signature) = &release.signature else {
        let text = "the archive is not signed";
        return Err(Failure::new(SIGNATURE, text, "use a signed archive of the project"));
    };
    let wrong = |why: &dyn std::fmt::Display| {
        let text = format!("the signature of the archive is wrong: {why} (key {})", file.display());
        Failure::new(SIGNATURE, text, "do not use this archive; download it again from the project")
    };
    let signature = Signature::decode(signature).map_err(|error| wrong(&error))?;
    match key.verify(&release.sums, &signature, false) {
        Ok(()) => Ok(Some(file.to_owned())),
        Err(Error::UnexpectedKeyId) => Err(wrong(&"another key made it")),
        Err(error) => Err(wrong(&error)),
    }
}

fn read(file: &Path) -> Result<PublicKey, Failure> {
    let text = std::fs::read_to_string(file).map_err(|error| Failure::file(file, &error))?;
    // A minisign key file contains a comment and the key. Web pages often show the key alone.
    let key = PublicKey::decode(&text).or_else(|_| PublicKey::from_base64(text.trim()));
    key.map_err(|_| {
        let text = format!("{} is not a public key of minisign", file.display());
        Failure::new(
            SIGNATURE,
            text,
            "name the file with the public key of the project, such as mote.pub",
        )
    })
}
