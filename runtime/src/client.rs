//! Client for the API server: its configuration, and the time limits of its connections.

use std::ffi::OsStr;
use std::path::Path;
use std::sync::Arc;

use anyhow::{Result, anyhow, bail};
use kube::client::ClientBuilder;
use kube::config::KubeConfigOptions;
use kube::{Client, Config};
use tower::BoxError;
use tower::util::MapErrLayer;

use crate::limits::api::{CONNECT_TIMEOUT, SILENCE, WRITE_TIMEOUT};

/// Error if neither a kubeconfig nor a pod's service account exists.
const NO_CONFIGURATION: &str = "no Kubernetes cluster is configured: this is not a pod \
    (KUBERNETES_SERVICE_HOST is not set), KUBECONFIG is not set, and ~/.kube/config does not exist; \
    set KUBECONFIG";

/// Returns a client for the cluster of [`client_config`], and the API server's URL.
///
/// Sends nothing: only the first request finds out whether the API server can be reached.
///
/// # Errors
///
/// The errors of [`client_config`]. Also an error if no client can be made of the configuration,
/// for example because of an invalid certificate or key.
pub async fn connect() -> Result<(Client, Arc<str>)> {
    let config = client_config().await?;
    let server: Arc<str> = Arc::from(config.cluster_url.to_string().trim_end_matches('/'));
    let builder = ClientBuilder::try_from(config)
        .map_err(|error| anyhow!("cannot set up the Kubernetes client: {error}"))?;
    let name = Arc::clone(&server);
    let named = MapErrLayer::new(move |error: BoxError| name_server(&name, error));
    Ok((builder.with_layer(&named).build(), server))
}

/// Error of a request without an answer, with the URL of the API server.
#[derive(Debug, thiserror::Error)]
#[error("{server}: {source}")]
pub(crate) struct Unanswered {
    pub(crate) server: Arc<str>,
    source: BoxError,
}

/// Adds the API server's URL to an error of a connection. Errors of the client itself stay as they
/// are.
fn name_server(server: &Arc<str>, error: BoxError) -> BoxError {
    if error.is::<kube::Error>() || error.is::<hyper::Error>() {
        return error;
    }
    Box::new(Unanswered { server: Arc::clone(server), source: error })
}

/// Returns the configuration of the client: the first that exists of KUBECONFIG, the pod's service
/// account, and `~/.kube/config`.
///
/// Its time limits suit long-running components:
/// - A connection that receives nothing for 35 s while an answer is due is closed. Watches end
///   after 30 s and are opened again (see [`watch`](crate::watch())), so no healthy one is closed.
/// - Connecting takes 5 s at most.
/// - The client does not retry requests itself. It would do so out of the caller's sight, with
///   pauses that double up to 1000 s, and callers here have retry policies of their own.
///
/// # Errors
///
/// One line, if there is no configuration, or an invalid one. An invalid KUBECONFIG is an error
/// even if a later source exists.
pub async fn client_config() -> Result<Config> {
    let home = std::env::home_dir().map(|home| home.join(".kube/config"));
    let source = choose(
        std::env::var_os("KUBECONFIG").as_deref(),
        std::env::var_os("KUBERNETES_SERVICE_HOST").as_deref(),
        home.as_deref().is_some_and(Path::exists),
    );
    let config = match source {
        Some(Source::Kubeconfig) => Config::from_kubeconfig(&KubeConfigOptions::default())
            .await
            .map_err(|error| anyhow!("cannot use the kubeconfig: {error}"))?,
        Some(Source::ServiceAccount) => {
            Config::incluster().map_err(|error| anyhow!("cannot use the pod's service account: {error}"))?
        }
        None => bail!(NO_CONFIGURATION),
    };
    Ok(with_limits(config))
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Source {
    Kubeconfig,
    ServiceAccount,
}

/// Chooses the source in client-go's order: KUBECONFIG, the pod's service account,
/// `~/.kube/config`.
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
    // Otherwise the time that a connection was idle before a request would count, too.
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
    fn the_first_source_that_exists_is_chosen() {
        let (set, empty) = (Some(OsStr::new("x")), Some(OsStr::new("")));
        assert_eq!(choose(set, set, true), Some(Source::Kubeconfig));
        assert_eq!(choose(None, set, true), Some(Source::ServiceAccount));
        assert_eq!(choose(empty, set, true), Some(Source::ServiceAccount));
        assert_eq!(choose(None, None, true), Some(Source::Kubeconfig));
        assert_eq!(choose(empty, None, false), None);
    }

    #[test]
    fn requests_have_time_limits_and_are_not_retried_by_the_client() {
        let config = with_limits(Config::new(http::Uri::from_static("https://10.0.0.1")));
        assert_eq!(config.read_timeout, Some(SILENCE));
        assert!(config.reset_reader_on_write);
        assert!(config.connect_timeout.is_some() && config.write_timeout.is_some());
        assert!(!config.default_retry);
    }

    #[test]
    fn the_error_of_a_connection_names_the_server() {
        let refused = std::io::Error::from(std::io::ErrorKind::ConnectionRefused);
        let error = name_server(&Arc::from("https://10.0.0.1"), Box::new(refused));
        let problem = Problem::from(kube::Error::Service(error));
        assert_eq!(problem.message, "https://10.0.0.1: connection refused");
    }
}
