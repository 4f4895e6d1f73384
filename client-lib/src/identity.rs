//! Who this process is.

use std::env;
use std::path::Path;

/// What this process tells its peers of itself.
///
/// By default what Kubernetes' downward API has put into the environment: `MULTINET_POD_NAME` (else `HOSTNAME`, else the host's name)
/// and `MULTINET_POD_UID`. With the uid a peer can notice that it has reached another pod than it meant, and an instance
/// that finds itself among the endpoints passes itself over.
///
/// # Examples
///
/// ```no_run
/// # async fn example() -> Result<(), Box<dyn std::error::Error>> {
/// use multinet_client::{Identity, Listener};
///
/// // Two listeners in one pod, which their senders' logs tell apart.
/// let pictures = Listener::builder().identity(Identity::new("infer-0/pictures")).port(18515).bind().await?;
/// let results = Listener::builder().identity(Identity::new("infer-0/results")).port(18516).bind().await?;
/// # Ok(()) }
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Identity {
    pub(crate) name: String,
    pub(crate) uid: Option<String>,
}

impl Identity {
    /// With a name for other peers' logs.
    ///
    /// ```
    /// use multinet_client::Identity;
    ///
    /// // A handshake has room for 253 bytes of it.
    /// assert_eq!(Identity::new("a".repeat(300)), Identity::new("a".repeat(253)));
    /// ```
    pub fn new(name: impl Into<String>) -> Self {
        Self { name: shortened(name.into()), uid: None }
    }

    /// With the uid of its pod.
    ///
    /// ```
    /// use multinet_client::Identity;
    ///
    /// let identity = Identity::new("infer-0").uid("1c6f0f6e-6f0b-4c5e-9b53-3c0d7a5e1f10");
    /// assert_ne!(identity, Identity::new("infer-0"));
    /// // An empty one, as of a variable that is not set, is none.
    /// assert_eq!(identity.uid(""), Identity::new("infer-0"));
    /// ```
    #[must_use]
    pub fn uid(mut self, uid: impl Into<String>) -> Self {
        self.uid = Some(shortened(uid.into())).filter(|uid| !uid.is_empty());
        self
    }

    /// As the environment has it.
    ///
    /// ```no_run
    /// # fn example() -> Result<(), Box<dyn std::error::Error>> {
    /// use multinet_client::Identity;
    ///
    /// // Where the downward API is not in the environment, but in a volume.
    /// let uid = std::fs::read_to_string("/etc/podinfo/uid")?;
    /// let identity = Identity::from_env().uid(uid.trim_end());
    /// # Ok(()) }
    /// ```
    pub fn from_env() -> Self {
        let variable = |name| env::var(name).ok().filter(|value| !value.is_empty());
        let host = || std::fs::read_to_string(Path::new("/proc/sys/kernel/hostname")).ok();
        let name = variable("MULTINET_POD_NAME").or_else(|| variable("HOSTNAME")).or_else(host);
        let identity = Self::new(name.unwrap_or_default().trim());
        match variable("MULTINET_POD_UID") {
            Some(uid) => identity.uid(uid),
            None => identity,
        }
    }
}

/// Names travel in handshakes, which have a limit.
fn shortened(mut text: String) -> String {
    let end = text.floor_char_boundary(253);
    text.truncate(end);
    text
}
