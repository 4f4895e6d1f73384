//! Current addresses of the service of `--matrix`.

use std::collections::BTreeSet;
use std::net::IpAddr;
use std::sync::Arc;

use futures::StreamExt as _;
use multinet_client::{Change, Resolver};
use tokio::sync::watch;
use tracing::warn;

/// Port in questions for a service's addresses, which do not depend on it.
pub(super) const ANY_PORT: &str = "1";

/// Addresses of a service's pods, as DNS knows them now. A clone is another handle.
#[derive(Clone)]
pub(super) struct Members {
    service: Arc<str>,
    /// `None` while DNS does not tell the addresses: then there are no members.
    known: watch::Receiver<Option<BTreeSet<IpAddr>>>,
}

impl Members {
    /// Follows the addresses of a service, for as long as a handle is there. The resolver must not
    /// hold addresses while DNS fails: those of pods that are gone may have new owners.
    pub(super) fn follow(resolver: &Resolver, service: &str) -> Self {
        let (tell, known) = watch::channel(None);
        let mut changes = resolver.watch(service, ANY_PORT);
        let name = service.to_owned();
        tokio::spawn(async move {
            loop {
                let change = tokio::select! {
                    Some(change) = changes.next() => change,
                    () = tell.closed() => return,
                };
                match change {
                    Change::Endpoints(now) => {
                        let all = now.endpoints.iter().flat_map(|endpoint| &endpoint.addresses);
                        tell.send_replace(Some(all.map(|address| address.ip).collect()));
                    }
                    Change::Lost { error } => {
                        warn!("no one may connect, as DNS does not tell the addresses of {name}: {error}");
                        tell.send_replace(None);
                    }
                    _ => {}
                }
            }
        });
        Self { service: service.into(), known }
    }

    pub(super) fn service(&self) -> &str {
        &self.service
    }

    /// Checks that an address is one of the service's.
    ///
    /// # Errors
    ///
    /// The reason why it is not.
    pub(super) fn check(&self, ip: IpAddr) -> Result<(), String> {
        let service = &self.service;
        match &*self.known.borrow() {
            Some(known) if known.contains(&ip) => Ok(()),
            Some(_) => Err(format!("{ip} is no address of {service}, which --matrix names")),
            None => {
                Err(format!("DNS does not tell the addresses of {service}, which --matrix names, or not yet"))
            }
        }
    }

    /// Waits until one of these addresses is no longer one of the service's. Returns the reason.
    pub(super) async fn left(&self, ips: [IpAddr; 2]) -> String {
        let mut known = self.known.clone();
        loop {
            if let Some(reason) = ips.iter().find_map(|ip| self.check(*ip).err()) {
                return reason;
            }
            if known.changed().await.is_err() {
                std::future::pending::<()>().await;
            }
        }
    }
}

#[cfg(test)]
impl Members {
    /// Returns members that a test changes.
    pub(super) fn given(
        service: &str,
        known: Option<BTreeSet<IpAddr>>,
    ) -> (watch::Sender<Option<BTreeSet<IpAddr>>>, Self) {
        let (tell, known) = watch::channel(known);
        (tell, Self { service: service.into(), known })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn only_current_addresses_are_members() {
        let (tell, members) = Members::given("train", None);
        let [a, b] = ["10.0.0.1", "10.0.0.2"].map(|ip| ip.parse::<IpAddr>().unwrap());
        assert!(members.check(a).unwrap_err().starts_with("DNS does not tell the addresses of train"));
        tell.send_replace(Some(BTreeSet::from([a, b])));
        members.check(a).unwrap();
        let leaving = tokio::spawn({
            let members = members.clone();
            async move { members.left([a, b]).await }
        });
        tell.send_replace(Some(BTreeSet::from([a])));
        assert_eq!(leaving.await.unwrap(), "10.0.0.2 is no address of train, which --matrix names");
        tell.send_replace(None);
        assert!(members.check(a).is_err());
    }
}
