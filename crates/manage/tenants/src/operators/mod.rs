//! Who may manage a node, and what they did.
//!
//! [`Operators`] knows the owner's token, which is in a file in the data folder, and the tokens
//! that were made for others, each with a [`Role`]. [`tokens`] makes, lists and revokes those
//! others in the store. [`Audit`] records what was changed and by whom. This module must not know
//! HTTP: listeners pass it the method and the path of a request, and make responses from its
//! answers.

mod admission;
mod audit;
mod guesses;
mod role;
pub mod tokens;

pub use admission::{Admission, Admitted, Operators, TokenKey, bearer};
pub use audit::{Act, Audit, Begun, is_act, reads_only};
pub use role::Role;
