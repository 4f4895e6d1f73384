//! Client that queries all services all the time, and knows which addresses have to be in the
//! answers.

use std::collections::BTreeSet;
use std::net::{IpAddr, SocketAddr};
use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use k8s_openapi::jiff::Timestamp;
use multinet_testing::ask::ask;
use multinet_testing::dns::{Edns, Query, Transport};
use multinet_testing::pods::DEFAULT_NETWORK;
use tokio::sync::oneshot;
use tokio::task::JoinHandle;

use super::model::{Model, Steady};

/// Pause between two queries.
const PAUSE: Duration = Duration::from_millis(5);

/// Task that queries until an answer lacks an address that it must have, or until it is stopped.
#[derive(Debug)]
pub(super) struct Asker {
    stop: oneshot::Sender<()>,
    task: JoinHandle<Result<usize>>,
}

/// Service to query.
#[derive(Debug, Clone)]
pub(super) struct Subject {
    pub(super) service: &'static str,
    pub(super) domain: String,
    /// Addresses that another writer publishes, which every answer must have.
    pub(super) foreign: Vec<IpAddr>,
}

/// State of one service and address family.
struct Question {
    subject: Subject,
    rtype: &'static str,
    /// Addresses that have been answered, and must be in every answer until their pod changes.
    owed: Steady,
}

impl Asker {
    /// Starts to query `server`.
    ///
    /// An address must be in every answer from the first one that had it while its pod was ready,
    /// until the next change of that pod begins.
    pub(super) fn begin(server: SocketAddr, subjects: Vec<Subject>, model: Model) -> Self {
        let (stop, mut stopped) = oneshot::channel();
        let mut questions: Vec<Question> = subjects
            .into_iter()
            .flat_map(|subject| {
                ["A", "AAAA"].map(|rtype| Question { subject: subject.clone(), rtype, owed: Steady::new() })
            })
            .collect();
        let task = tokio::spawn(async move {
            let mut checked = 0;
            loop {
                for question in &mut questions {
                    checked += question.ask(server, &model).await?;
                    if tokio::time::timeout(PAUSE, &mut stopped).await.is_ok() {
                        return Ok(checked);
                    }
                }
            }
        });
        Self { stop, task }
    }

    /// Stops the queries. Fails if an address was missing at any time, or if hardly any answer was
    /// checked.
    pub(super) async fn stop(self) -> Result<()> {
        // Sending fails if the task has stopped by itself. Its result has the reason.
        let _ = self.stop.send(());
        let checked = self.task.await.context("the asker panicked")??;
        ensure!(checked > 100, "only {checked} expected addresses were checked");
        eprintln!("{checked} expected addresses were checked in answers");
        Ok(())
    }
}

impl Question {
    /// Sends one query. Returns the number of addresses that had to be in the answer.
    async fn ask(&mut self, server: SocketAddr, model: &Model) -> Result<usize> {
        let Self { subject: Subject { service, domain, foreign }, rtype, owed } = self;
        let before = model.steady(service);
        let query = Query::new(domain, rtype).edns(Edns::new(1232));
        let reply = ask(server, Transport::Udp, &query).await?;
        let after = model.steady(service);
        let answered: BTreeSet<IpAddr> =
            reply.data().iter().map(|data| data.parse()).collect::<Result<_, _>>()?;
        let is_default = |address: &IpAddr| match address {
            IpAddr::V4(address) => address.octets().starts_with(&DEFAULT_NETWORK),
            IpAddr::V6(_) => false,
        };
        ensure!(!answered.iter().any(is_default), "an address of the default network:\n{}", reply.text(""));

        let untouched: Steady = before.intersection(&after).copied().collect();
        owed.retain(|address| untouched.contains(address));
        let due = owed.iter().map(|(address, _)| address);
        let theirs = foreign.iter().filter(|address| address.is_ipv4() == (*rtype == "A"));
        let mut count = 0;
        for address in due.chain(theirs) {
            ensure!(
                answered.contains(address),
                "{address} of {service} is missing at {}, although its pod did not change:\n{}",
                Timestamp::now(),
                reply.text("")
            );
            count += 1;
        }
        owed.extend(untouched.into_iter().filter(|(address, _)| answered.contains(address)));
        Ok(count)
    }
}
