//! Who may manage a node, and what they did.
//!
//! [`Operators`] knows the owner's token, which is in a file in the data folder, and the tokens
//! that were made for others, each with a [`Role`]. [`tokens`] makes, lists and revokes those
//! others in the store. A browser has a [`Session`], which has the rights of a token. [`Audit`]
//! records what was changed and by whom. This module must not know HTTP: listeners pass it the
//! method and the path of a request, and make responses from its answers.

mod admission;
mod audit;
mod credential;
mod guesses;
mod login;
mod role;
mod sessions;
pub mod tokens;

pub use admission::{Admission, Admitted, Operators, bearer, user_name};
pub use audit::{Act, Audit, Begun, is_act, reads_calls, reads_only};
pub use credential::{Credential, Maker, TokenKey};
pub use login::{LogIn, Proof, Session};
pub use role::Role;
pub use sessions::CODE_LIFETIME;
