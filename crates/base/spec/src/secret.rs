//! The names of secrets.

/// Whether `name` is a valid name for a secret. It is also the name of the secret's file.
pub fn is_secret_name(name: &str) -> bool {
    (1..=253).contains(&name.len())
        && !name.starts_with('.')
        && name.bytes().all(|b| b.is_ascii_alphanumeric() || b"-_.".contains(&b))
}
