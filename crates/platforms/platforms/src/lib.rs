//! The APIs of other platforms, with a folder for each platform.
//!
//! The platforms share [`compat`], which defines the traits through which they call a node. A platform
//! must not know the engine, the store, another platform or the configuration.

pub mod compat;
pub mod nuclio;
pub mod openfaas;
pub mod openwhisk;
pub mod tinyfaas;
