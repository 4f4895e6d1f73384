//! The connection to the API server: where it is, and how long its silence is borne.

use std::ffi::OsStr;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use kube::client::ClientBuilder;
use kube::config::{InClusterError, KubeConfigOptions, KubeconfigError};
use kube::{Client, Config};
use tower::BoxError;
use tower::util::MapErrLayer;

/// How long a connection may be silent before it is taken for dead. Longer than [`WATCH_TIME`](crate::watch::WATCH_TIME), so that
/// a healthy one never is.
pub const SILENCE: Duration = Duration::from_secs(35);

/// How long connecting may take, TLS included. An address that swallows packets is given up after this.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(5);

/// How long the API server may take no byte of a request.
const WRITE_TIMEOUT: Duration = Duration::from_secs(15);

/// A client for the cluster that this process runs in, or that its kubeconfig names, and the API server's URL.
///
/// Nothing is sent yet: an API server that cannot be reached is noticed by the first request.
///
/// # Errors
///
/// See [`client_config`]; also [`ConnectError::Client`].
pub async fn connect() -> Result<(Client, Arc<str>), ConnectError> {
    let config = client_config().await?;
    let server: Arc<str> = Arc::from(config.cluster_url.to_string().trim_end_matches('/'));
    let builder = ClientBuilder::try_from(config).map_err(|error| ConnectError::Client(error.to_string()))?;
    let name = Arc::clone(&server);
    let named = MapErrLayer::new(move |error: BoxError| name_server(&name, error));
    Ok((builder.with_layer(&named).build(), server))
}

/// A request that has not been answered, and by whom.
#[derive(Debug, thiserror::Error)]
#[error("{server}: {source}")]
pub(crate) struct Unanswered {
    pub(crate) server: Arc<str>,
    source: BoxError,
}

/// Adds the API server's address to what has gone wrong with a connection. The client's own errors stay as they are.
fn name_server(server: &Arc<str>, error: BoxError) -> BoxError {
    if error.is::<kube::Error>() || error.is::<hyper::Error>() {
        return error;
    }
    Box::new(Unanswered { server: Arc::clone(server), source: error })
}

/// What [`connect`] connects to: the first there is of KUBECONFIG, the pod's service account, and
/// `~/.kube/config`.
///
/// Time limits are set for long-running components:
/// - A connection that is silent for 35 s while an answer is due is closed. Watches end after 30 s
///   and are opened again (see [`watch`](crate::watch())), so this never hits a healthy one.
/// - Connecting takes 5 s at most.
/// - Requests are not repeated by the client itself. It would do so with pauses that double up to 1000 s,
///   out of the caller's sight; and callers here have a policy of their own.
///
/// # Errors
///
/// [`ConnectError`], if there is no configuration, or a bad one. A KUBECONFIG that cannot be used is an error
/// whatever else there is.
pub async fn client_config() -> Result<Config, ConnectError> {
    let home = std::env::home_dir().map(|home| home.join(".kube/config"));
    let source = choose(
        std::env::var_os("KUBECONFIG").as_deref(),
        std::env::var_os("KUBERNETES_SERVICE_HOST").as_deref(),
        home.as_deref().is_some_and(Path::exists),
    );
    let config = match source {
        Some(Source::Kubeconfig) => Config::from_kubeconfig(&KubeConfigOptions::default())
            .await
            .map_err(|error| ConnectError::Kubeconfig(Box::new(error)))?,
        Some(Source::ServiceAccount) => {
            Config::incluster().map_err(|error| ConnectError::ServiceAccount(Box::new(error)))?
        }
        None => return Err(ConnectError::NoConfiguration),
    };
    Ok(with_limits(config))
}

/// Why there is no client. Each is one line.
#[derive(Debug, thiserror::Error)]
pub enum ConnectError {
    /// Nothing says where the API server is.
    #[error(
        "no Kubernetes cluster is configured: this is not a pod (KUBERNETES_SERVICE_HOST is not set), \
         and neither KUBECONFIG nor ~/.kube/config is there"
    )]
    NoConfiguration,
    /// KUBECONFIG or `~/.kube/config` cannot be used.
    #[error("cannot use the kubeconfig: {0}")]
    Kubeconfig(#[source] Box<KubeconfigError>),
    /// The files that a pod finds its API server by cannot be used.
    #[error("cannot use the pod's service account: {0}")]
    ServiceAccount(#[source] Box<InClusterError>),
    /// The configuration was read, but does not make a client (a bad certificate or key, for example).
    #[error("cannot set up the Kubernetes client: {0}")]
    Client(String),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Source {
    Kubeconfig,
    ServiceAccount,
}

/// As client-go's users know it: an explicit KUBECONFIG, then the pod's own account, then the file at home.
fn choose(kubeconfig: Option<&OsStr>, service_host: Option<&OsStr>, file_at_home: bool) -> Option<Source> {
    if kubeconfig.is_some_and(|paths| !paths.is_empty()) {
        Some(Source::Kubeconfig)
    } else if service_host.is_some() {
        Some(Source::ServiceAccount)
    } else {
        file_at_home.then_some(Source::Kubeconfig)
    }
}

fn with_limits(mut config: Config) -> Config {
    config.connect_timeout = Some(CONNECT_TIMEOUT);
    config.read_timeout = Some(SILENCE);
    // Otherwise the time that a connection spent unused before a request counts as silence.
    config.reset_reader_on_write = true;
    config.write_timeout = Some(WRITE_TIMEOUT);
    config.default_retry = false;
    config
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::watch::Problem;

    #[test]
    fn sources_in_their_order() {
        let (set, empty) = (Some(OsStr::new("x")), Some(OsStr::new("")));
        assert_eq!(choose(set, set, true), Some(Source::Kubeconfig));
        assert_eq!(choose(None, set, true), Some(Source::ServiceAccount));
        assert_eq!(choose(empty, set, true), Some(Source::ServiceAccount));
        assert_eq!(choose(None, None, true), Some(Source::Kubeconfig));
        assert_eq!(choose(empty, None, false), None);
    }

    #[test]
    fn no_request_can_hang_and_none_is_repeated_unseen() {
        let config = with_limits(Config::new(http::Uri::from_static("https://10.0.0.1")));
        assert_eq!(config.read_timeout, Some(SILENCE));
        assert!(config.reset_reader_on_write);
        assert!(config.connect_timeout.is_some() && config.write_timeout.is_some());
        assert!(!config.default_retry);
    }

    #[test]
    fn a_server_that_cannot_be_reached_is_named() {
        let refused = std::io::Error::from(std::io::ErrorKind::ConnectionRefused);
        let error = name_server(&Arc::from("https://10.0.0.1"), Box::new(refused));
        let problem = Problem::from(kube::Error::Service(error));
        assert_eq!(problem.message, "https://10.0.0.1: connection refused");
    }

    #[test]
    fn errors_are_one_line() {
        let error = ConnectError::NoConfiguration.to_string();
        assert!(error.starts_with("no Kubernetes cluster is configured") && !error.contains('\n'), "{error}");
    }
}
