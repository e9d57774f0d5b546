//! The APIs and handlers of other platforms, a folder for each.
//!
//! They share [`compat`], which has the traits through which they call a node. A platform must not
//! know the engine, the store, another platform or the configuration.

pub mod compat;
pub mod nuclio;
pub mod openfaas;
pub mod openwhisk;
pub mod tinyfaas;
