//! The users of a node's own MQTT broker, in the form in which the management API shows and changes
//! them.

use hyper::Method;
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use crate::client::{Client, ClientError, encode};
use crate::paths;

/// A user of the broker, without its password.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct MqttUser {
    /// Its name.
    pub name: String,
    /// Topic filters that limit what the user may receive.
    pub read: Vec<String>,
    /// Topic filters that limit what the user may publish.
    pub write: Vec<String>,
}

/// The users of the broker.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct MqttUsers {
    /// The users, sorted by name.
    pub users: Vec<MqttUser>,
}

/// The properties of a user.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct MqttUserRequest {
    /// The user's password, 1 to 1,024 bytes. The node stores only a hash of it.
    pub password: String,
    /// Topic filters that limit what the user may receive.
    #[serde(default)]
    pub read: Vec<String>,
    /// Topic filters that limit what the user may publish.
    #[serde(default)]
    pub write: Vec<String>,
}

impl Client {
    /// Returns the users of the node's own broker.
    pub async fn mqtt_users(&self) -> Result<MqttUsers, ClientError> {
        self.get(paths::MQTT_USERS).await
    }

    /// Creates or replaces a user.
    pub async fn put_mqtt_user(
        &self,
        name: &str,
        user: &MqttUserRequest,
    ) -> Result<MqttUser, ClientError> {
        self.send_json(Method::PUT, &user_path(name), user, self.timeout).await
    }

    /// Removes a user.
    pub async fn remove_mqtt_user(&self, name: &str) -> Result<(), ClientError> {
        self.delete(&user_path(name)).await
    }
}

fn user_path(name: &str) -> String {
    format!("{}/{}", paths::MQTT_USERS, encode(name))
}
