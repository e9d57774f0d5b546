//! The APIs and handlers of other platforms, a folder for each.

pub mod compat;
pub mod nuclio;
pub mod openfaas;
pub mod openwhisk;
pub mod tinyfaas;
