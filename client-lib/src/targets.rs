//! The vertices at the other ends of a vertex' direct edges, which multinet-numaflow writes into
//! the environment of the vertex' containers.

use std::env::{self, VarError};
use std::fmt;

use thiserror::Error;

use crate::connector::{Connector, ConnectorBuilder};
use crate::error::{ConnectError, FetchError};
use crate::listener::Received;
use crate::peers::PeerSet;
use crate::reference::Reference;
use crate::resolve::name_flaw;

/// Variable with the vertices that this one sends to.
const TARGETS: &str = "MULTINET_TARGETS";

/// Variable with the vertices that this one receives from.
const SOURCES: &str = "MULTINET_SOURCES";

/// Variable with the alias of the network between them.
const NETWORK: &str = "MULTINET_NETWORK";

/// The longest part of a wrong text that an error repeats, in bytes.
const MAX_EXCERPT: usize = 100;

/// The vertices that this one sends to and receives from, and the network between them.
///
/// multinet-numaflow writes them into the environment of a vertex' user-defined container, from the
/// annotation `multinetwork.numaproj.io/direct-edges` of its Pipeline.
///
/// # Examples
///
/// ```no_run
/// # async fn example() -> Result<(), Box<dyn std::error::Error>> {
/// use multinet_client::Targets;
///
/// let targets = Targets::from_env()?;
/// let connector = targets.connector().build()?;
/// let peers = targets.target()?.connect(&connector).await?;
/// peers.send("a frame").await?;
/// # Ok(()) }
/// ```
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Targets {
    targets: Vec<Target>,
    sources: Vec<Target>,
    network: Option<String>,
}

/// Name and port of a vertex, which stand for all its ready pods.
///
/// # Examples
///
/// ```
/// use multinet_client::Targets;
///
/// let targets = Targets::parse("infer.frames.vision.vertexdomain.local.:18515", "", "")?;
/// let infer = targets.target()?;
/// assert_eq!(infer.to_string(), "infer.frames.vision.vertexdomain.local.:18515");
/// # Ok::<(), multinet_client::TargetsError>(())
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Target {
    name: String,
    port: u16,
}

/// Reason why the environment does not say which vertices there are.
///
/// # Examples
///
/// ```
/// use multinet_client::Targets;
///
/// let error = Targets::parse("infer.frames.vision.vertexdomain.local.", "", "").unwrap_err();
/// assert!(error.to_string().starts_with("MULTINET_TARGETS: "), "{error}");
/// ```
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum TargetsError {
    /// An entry of a list is no name with a port.
    #[error(
        "{variable}: {entry:?} is no NAME:PORT, such as infer.frames.vision.vertexdomain.local.:18515: {reason}"
    )]
    Entry {
        /// Name of the variable.
        variable: &'static str,
        /// Beginning of the entry.
        entry: String,
        /// Fault of the entry, in words.
        reason: &'static str,
    },
    /// A list has the same entry twice.
    #[error("{variable} has {entry} twice: name each vertex once")]
    Twice {
        /// Name of the variable.
        variable: &'static str,
        /// The entry.
        entry: Target,
    },
    /// The network's alias is none.
    #[error("MULTINET_NETWORK: {alias:?} is no alias of a network, such as rail0: {reason}")]
    Network {
        /// Beginning of the alias.
        alias: String,
        /// Fault of the alias, in words.
        reason: &'static str,
    },
    /// The variable's value is not UTF-8.
    #[error("{variable} is not UTF-8: it has to be text as multinet-numaflow writes it")]
    NotUnicode {
        /// Name of the variable.
        variable: &'static str,
    },
    /// There is no vertex where one is needed.
    #[error(
        "{variable} is not set: give the Pipeline the annotation multinetwork.numaproj.io/direct-edges, \
         or set the variable to NAME:PORT"
    )]
    Missing {
        /// Name of the variable.
        variable: &'static str,
    },
    /// There are several vertices where one is needed.
    #[error("{variable} has {count} vertices, and this program takes one: name one only")]
    Several {
        /// Name of the variable.
        variable: &'static str,
        /// Number of vertices.
        count: usize,
    },
}

impl Targets {
    /// Reads the variables `MULTINET_TARGETS`, `MULTINET_SOURCES` and `MULTINET_NETWORK`. A
    /// variable that is not set, or is empty, names nothing.
    ///
    /// ```no_run
    /// # fn example() -> Result<(), Box<dyn std::error::Error>> {
    /// use multinet_client::Targets;
    ///
    /// let targets = Targets::from_env()?;
    /// println!("sends to {:?}", targets.targets());
    /// # Ok(()) }
    /// ```
    ///
    /// # Errors
    ///
    /// [`TargetsError`], if a variable has another form than multinet-numaflow writes.
    pub fn from_env() -> Result<Self, TargetsError> {
        let [targets, sources, network] = [TARGETS, SOURCES, NETWORK].map(|variable| {
            env::var(variable).or_else(|error| match error {
                VarError::NotPresent => Ok(String::new()),
                VarError::NotUnicode(_) => Err(TargetsError::NotUnicode { variable }),
            })
        });
        Self::parse(&targets?, &sources?, &network?)
    }

    /// Parses the values of `MULTINET_TARGETS`, `MULTINET_SOURCES` and `MULTINET_NETWORK`. An empty
    /// text names nothing.
    ///
    /// ```
    /// use multinet_client::Targets;
    ///
    /// let decode = "decode.frames.vision.vertexdomain.local.:18515";
    /// let targets = Targets::parse("", decode, "rail0")?;
    /// assert_eq!(targets.source()?.port(), 18515);
    /// # Ok::<(), multinet_client::TargetsError>(())
    /// ```
    ///
    /// # Errors
    ///
    /// [`TargetsError`], which names the variable.
    pub fn parse(targets: &str, sources: &str, network: &str) -> Result<Self, TargetsError> {
        Ok(Self {
            targets: list(TARGETS, targets)?,
            sources: list(SOURCES, sources)?,
            network: alias(network)?,
        })
    }

    /// Returns the vertices that this one sends to.
    ///
    /// ```
    /// # use multinet_client::Targets;
    /// let targets = Targets::parse("a.p.ns.vertexdomain.local.:1,b.p.ns.zone.:2", "", "")?;
    /// assert_eq!(targets.targets().len(), 2);
    /// # Ok::<(), multinet_client::TargetsError>(())
    /// ```
    pub fn targets(&self) -> &[Target] {
        &self.targets
    }

    /// Returns the vertices that this one receives from.
    ///
    /// ```
    /// # use multinet_client::Targets;
    /// let targets = Targets::parse("a.p.ns.vertexdomain.local.:18515", "", "")?;
    /// assert!(targets.sources().is_empty());
    /// # Ok::<(), multinet_client::TargetsError>(())
    /// ```
    pub fn sources(&self) -> &[Target] {
        &self.sources
    }

    /// Returns the only vertex that this one sends to.
    ///
    /// ```
    /// # use multinet_client::Targets;
    /// let error = Targets::default().target().unwrap_err();
    /// assert!(error.to_string().starts_with("MULTINET_TARGETS is not set: "));
    /// ```
    ///
    /// # Errors
    ///
    /// [`TargetsError`], if there is none, or more than one.
    pub fn target(&self) -> Result<&Target, TargetsError> {
        only(TARGETS, &self.targets)
    }

    /// Returns the only vertex that this one receives from.
    ///
    /// ```
    /// # use multinet_client::Targets;
    /// let targets = Targets::parse("", "decode.frames.vision.vertexdomain.local.:18515", "")?;
    /// assert_eq!(targets.source()?.name(), "decode.frames.vision.vertexdomain.local.");
    /// # Ok::<(), multinet_client::TargetsError>(())
    /// ```
    ///
    /// # Errors
    ///
    /// [`TargetsError`], if there is none, or more than one.
    pub fn source(&self) -> Result<&Target, TargetsError> {
        only(SOURCES, &self.sources)
    }

    /// Returns the alias of the network between the vertices, if there is one network only.
    ///
    /// ```
    /// # use multinet_client::Targets;
    /// assert_eq!(Targets::parse("", "", "rail0")?.network(), Some("rail0"));
    /// # Ok::<(), multinet_client::TargetsError>(())
    /// ```
    pub fn network(&self) -> Option<&str> {
        self.network.as_deref()
    }

    /// Returns the builder of a connector that uses this network.
    ///
    /// ```
    /// # use multinet_client::Targets;
    /// use multinet_client::{Choice, Delivery};
    ///
    /// let builder = Targets::parse("", "", "rail0")?.connector();
    /// let builder = builder.delivery(Delivery::AtLeastOnce).choice(Choice::Nearest);
    /// # Ok::<(), multinet_client::TargetsError>(())
    /// ```
    pub fn connector(&self) -> ConnectorBuilder {
        match &self.network {
            Some(alias) => Connector::builder().network(alias),
            None => Connector::builder(),
        }
    }
}

impl Target {
    /// Returns the name in DNS.
    ///
    /// ```
    /// # use multinet_client::Targets;
    /// let targets = Targets::parse("infer.frames.vision.vertexdomain.local.:18515", "", "")?;
    /// assert_eq!(targets.target()?.name(), "infer.frames.vision.vertexdomain.local.");
    /// # Ok::<(), multinet_client::TargetsError>(())
    /// ```
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Returns the port. Frames are received there, and payloads offered: the annotation names one
    /// port for both ends.
    ///
    /// ```no_run
    /// # async fn example() -> Result<(), Box<dyn std::error::Error>> {
    /// # use multinet_client::Targets;
    /// use multinet_client::Offers;
    ///
    /// let port = Targets::from_env()?.target()?.port();
    /// let offers = Offers::builder().port(port).bind().await?;
    /// # Ok(()) }
    /// ```
    pub fn port(&self) -> u16 {
        self.port
    }

    /// Connects to the pods of the vertex, and completes when the first one is connected.
    ///
    /// ```no_run
    /// # async fn example() -> Result<(), Box<dyn std::error::Error>> {
    /// # use multinet_client::Targets;
    /// let targets = Targets::from_env()?;
    /// let peers = targets.target()?.connect(&targets.connector().build()?).await?;
    /// peers.send("a frame").await?;
    /// # Ok(()) }
    /// ```
    ///
    /// # Errors
    ///
    /// As [`Connector::connect`].
    pub async fn connect(&self, connector: &Connector) -> Result<PeerSet, ConnectError> {
        connector.connect(&self.name, &self.port.to_string()).await
    }

    /// Connects to the pods of the vertex, and does not wait for the first one.
    ///
    /// ```no_run
    /// # async fn example() -> Result<(), Box<dyn std::error::Error>> {
    /// # use multinet_client::Targets;
    /// let targets = Targets::from_env()?;
    /// // A vertex may have no pods yet.
    /// let peers = targets.target()?.start(&targets.connector().build()?);
    /// # Ok(()) }
    /// ```
    pub fn start(&self, connector: &Connector) -> PeerSet {
        connector.start(&self.name, &self.port.to_string())
    }

    /// Fetches a payload by its reference from a pod of the vertex.
    ///
    /// ```no_run
    /// # async fn example(message: &str) -> Result<(), Box<dyn std::error::Error>> {
    /// # use multinet_client::Targets;
    /// let targets = Targets::from_env()?;
    /// let connector = targets.connector().build()?;
    /// let frame = targets.source()?.fetch(&connector, &message.parse()?).await?;
    /// frame.acknowledge();
    /// # Ok(()) }
    /// ```
    ///
    /// # Errors
    ///
    /// As [`Connector::fetch`].
    pub async fn fetch(&self, connector: &Connector, reference: &Reference) -> Result<Received, FetchError> {
        connector.fetch(&self.name, &self.port.to_string(), reference).await
    }
}

impl fmt::Display for Target {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}", self.name, self.port)
    }
}

/// Parses the value of a variable with a list of vertices.
fn list(variable: &'static str, text: &str) -> Result<Vec<Target>, TargetsError> {
    let mut list = Vec::new();
    let entries = Some(text).filter(|text| !text.is_empty());
    for text in entries.into_iter().flat_map(|text| text.split(',')) {
        let entry = entry(text).map_err(|reason| {
            let entry = excerpt(text);
            TargetsError::Entry { variable, entry, reason }
        })?;
        if list.contains(&entry) {
            return Err(TargetsError::Twice { variable, entry });
        }
        list.push(entry);
    }
    Ok(list)
}

fn entry(text: &str) -> Result<Target, &'static str> {
    let (name, port) = text.rsplit_once(':').ok_or("it has no port")?;
    if let Some(flaw) = name_flaw(name.strip_suffix('.').unwrap_or(name)) {
        return Err(flaw);
    }
    let is_number = !port.is_empty() && port.bytes().all(|b| b.is_ascii_digit()) && !port.starts_with('0');
    let port = port.parse().ok().filter(|_| is_number).ok_or("ports are numbers from 1 to 65535")?;
    Ok(Target { name: name.to_ascii_lowercase(), port })
}

/// Parses the alias of a network.
fn alias(text: &str) -> Result<Option<String>, TargetsError> {
    let flaw = if text.contains('.') { Some("it has a dot") } else { name_flaw(text) };
    match flaw.filter(|_| !text.is_empty()) {
        Some(reason) => Err(TargetsError::Network { alias: excerpt(text), reason }),
        None => Ok(Some(text.to_owned()).filter(|alias| !alias.is_empty())),
    }
}

fn only<'t>(variable: &'static str, list: &'t [Target]) -> Result<&'t Target, TargetsError> {
    match list {
        [only] => Ok(only),
        [] => Err(TargetsError::Missing { variable }),
        _ => Err(TargetsError::Several { variable, count: list.len() }),
    }
}

fn excerpt(text: &str) -> String {
    text[..text.floor_char_boundary(MAX_EXCERPT)].to_owned()
}

#[cfg(test)]
mod tests;
