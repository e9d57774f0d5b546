//! The setting for ports that belong to single functions.

use crate::config::FunctionPorts;

use super::Check;

impl Check<'_> {
    pub(super) fn function_ports(&mut self) -> FunctionPorts {
        let given = self.given("function_ports");
        let parsed = given.as_deref().map_or(Some(FunctionPorts::default()), FunctionPorts::parse);
        let Some(ports) = parsed else {
            let wanted = "off, or ports and ranges such as 443,30000-32767";
            self.fault("function_ports", wanted, None);
            return FunctionPorts::default();
        };
        self.settle("function_ports", ports.to_string());
        ports
    }
}
