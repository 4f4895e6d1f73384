//! Random creation, change and deletion of pods.

use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use kube::api::ListParams;
use multinet_testing::pods::{Nic, Pod as NewPod, Pods};
use tokio::sync::oneshot;
use tokio::task::JoinHandle;
use tokio::time::{Instant, sleep, timeout};

use super::model::{APPS, Model, Phase, Pod};
use super::random::Random;

/// Number of pods below which pods are only created.
const FEW: usize = 12;
/// Number of pods above which pods are removed.
const MANY: usize = 36;

/// Longest outage of the API server.
const OUTAGE: Duration = Duration::from_secs(120);

/// Time limit for a single request, after which it is sent again.
const PATIENCE: Duration = Duration::from_secs(10);

/// Pause before a request is sent again.
const AGAIN: Duration = Duration::from_millis(100);

/// Longest pause between two changes, in milliseconds.
const PAUSE: usize = 20;

/// Change of a pod.
#[derive(Debug, Clone, Copy)]
enum Change {
    Probe,
    Move,
    Relabel,
    Finish,
    Terminate,
    Remove,
    Recreate,
    /// The pod is removed, and a new pod gets its addresses.
    Replace,
}

/// Changes to choose from. The likelier ones are listed several times.
const CHANGES: [Change; 16] = [
    Change::Probe,
    Change::Probe,
    Change::Probe,
    Change::Probe,
    Change::Probe,
    Change::Probe,
    Change::Move,
    Change::Move,
    Change::Move,
    Change::Relabel,
    Change::Finish,
    Change::Terminate,
    Change::Terminate,
    Change::Remove,
    Change::Recreate,
    Change::Replace,
];

/// Task that changes pods until it is stopped, or until a change fails.
#[derive(Debug)]
pub(super) struct Churn {
    stop: oneshot::Sender<()>,
    task: JoinHandle<Result<(usize, Worker)>>,
}

impl Churn {
    /// Starts the task.
    pub(super) fn begin(worker: Worker) -> Self {
        let (stop, mut stopped) = oneshot::channel();
        let task = tokio::spawn(async move {
            let mut worker = worker;
            let mut count = 0;
            loop {
                worker.change().await?;
                count += 1;
                let pause = worker.random.milliseconds(PAUSE);
                if timeout(pause, &mut stopped).await.is_ok() {
                    return Ok((count, worker));
                }
            }
        });
        Self { stop, task }
    }

    /// Stops the task. Fails if a change failed, or if no pod was changed.
    pub(super) async fn end(self) -> Result<Worker> {
        // Sending fails if the task has stopped by itself. Its result has the reason.
        let _ = self.stop.send(());
        let (count, worker) = self.task.await.context("the churn panicked")??;
        ensure!(count > 0, "no pod was changed");
        eprintln!("{count} changes of pods");
        Ok(worker)
    }
}

/// Makes changes, and records them in the model.
#[derive(Debug)]
pub(super) struct Worker {
    pods: Pods,
    model: Model,
    random: Random,
    next: u16,
}

impl Worker {
    pub(super) fn new(pods: Pods, model: Model, random: Random) -> Self {
        Self { pods, model, random, next: 0 }
    }

    /// Creates the first `count` pods.
    pub(super) async fn populate(&mut self, count: usize) -> Result<()> {
        for _ in 0..count {
            self.create().await?;
        }
        Ok(())
    }

    /// Fails if the pods differ from the model. In that case the test is at fault, not the
    /// controller.
    pub(super) async fn check(&self) -> Result<()> {
        let mut found = Vec::new();
        for pod in self.pods.api().list(&ListParams::default()).await?.items {
            let status = pod.status.unwrap_or_default();
            let mut conditions = status.conditions.into_iter().flatten();
            let ready = conditions.any(|condition| condition.type_ == "Ready" && condition.status == "True");
            let leaving = pod.metadata.deletion_timestamp.is_some();
            let app = pod.metadata.labels.and_then(|labels| labels.get("app").cloned());
            found.push((pod.metadata.name.unwrap_or_default(), app.unwrap_or_default(), ready, leaving));
        }
        found.sort_unstable();
        let expected: Vec<_> = self
            .model
            .pods()
            .into_iter()
            .map(|(name, pod)| (name, pod.app.to_owned(), pod.ready, pod.leaving))
            .collect();
        ensure!(found == expected, "the pods are {found:#?}\ninstead of {expected:#?}");
        Ok(())
    }

    async fn change(&mut self) -> Result<()> {
        let pods = self.model.pods();
        let Some((name, pod)) = self.random.one_of(&pods).cloned() else { return self.create().await };
        if pods.len() < FEW || (pods.len() < MANY && self.random.below(5) == 0) {
            return self.create().await;
        }
        let change = self.random.one_of(&CHANGES).copied().context("no change")?;
        let change = if pods.len() > MANY { Change::Remove } else { change };
        self.apply(&name, pod, change).await.with_context(|| format!("{change:?} of the pod {name}"))
    }

    async fn create(&mut self) -> Result<()> {
        let app = self.random.one_of(&APPS).copied().context("no app")?;
        let number = self.number();
        let phase = if self.random.below(6) == 0 { Phase::Pending } else { Phase::Running };
        let ready = phase == Phase::Running && self.random.below(6) > 0;
        let pod = Pod { app, number, phase, ready, leaving: false, fresh: true };
        self.start(&format!("pod-{number}"), pod).await
    }

    /// Returns a number that no pod has had yet.
    fn number(&mut self) -> u16 {
        self.next += 1;
        self.next
    }

    /// Creates a pod.
    async fn start(&self, name: &str, pod: Pod) -> Result<()> {
        let addresses = pod.addresses().map(|address| address.to_string());
        let new = NewPod::new(name).label("app", pod.app).nics(&[nic(&addresses)]);
        until_done("make it", || async {
            match self.pods.create(new.clone()).await {
                // An earlier request created the pod, but its answer was lost.
                Err(error) if code(&error) == Some(409) => Ok(()),
                created => created.map(drop),
            }
        })
        .await?;
        if pod.phase == Phase::Running {
            until_done("run it", || async { self.pods.run(name).await.map(drop) }).await?;
            until_done("probe it", || async { self.pods.ready(name, pod.ready).await.map(drop) }).await?;
        }
        self.model.set(name, Some(pod));
        Ok(())
    }

    async fn remove(&self, name: &str) -> Result<()> {
        until_done("remove it", || async {
            match self.pods.remove(name).await {
                Err(error) if code(&error) == Some(404) => Ok(()),
                removed => removed,
            }
        })
        .await?;
        self.model.set(name, None);
        Ok(())
    }

    async fn apply(&mut self, name: &str, mut pod: Pod, change: Change) -> Result<()> {
        self.model.touch(name);
        let pods = self.pods.clone();
        match change {
            Change::Probe if pod.phase == Phase::Running => {
                pod.fresh &= !pod.ready;
                pod.ready = !pod.ready;
                until_done("probe it", || async { pods.ready(name, pod.ready).await.map(drop) }).await?;
            }
            Change::Probe if pod.phase == Phase::Pending => {
                pod.phase = Phase::Running;
                until_done("run it", || async { pods.run(name).await.map(drop) }).await?;
            }
            Change::Move => {
                (pod.number, pod.fresh) = (self.number(), true);
                let addresses = pod.addresses().map(|address| address.to_string());
                until_done("report it", || async { pods.report(name, &[nic(&addresses)]).await.map(drop) })
                    .await?;
            }
            Change::Relabel => {
                (pod.app, pod.fresh) = (self.random.one_of(&APPS).copied().context("no app")?, false);
                until_done("label it", || async { pods.label(name, "app", Some(pod.app)).await.map(drop) })
                    .await?;
            }
            Change::Finish if !pod.leaving => {
                pod.phase = Phase::Succeeded;
                until_done("finish it", || async { pods.phase(name, "Succeeded").await.map(drop) }).await?;
            }
            Change::Terminate if pod.phase == Phase::Running => {
                pod.leaving = true;
                until_done("terminate it", || async { pods.terminate(name).await }).await?;
            }
            Change::Recreate | Change::Replace => {
                self.remove(name).await?;
                let number = self.number();
                let started = Pod { phase: Phase::Running, ready: true, leaving: false, ..pod };
                if matches!(change, Change::Replace) {
                    return self.start(&format!("pod-{number}"), Pod { fresh: false, ..started }).await;
                }
                return self.start(name, Pod { number, fresh: true, ..started }).await;
            }
            Change::Remove => return self.remove(name).await,
            Change::Probe | Change::Finish | Change::Terminate => {}
        }
        self.model.set(name, Some(pod));
        Ok(())
    }
}

fn nic(addresses: &[String]) -> Nic {
    let addresses: Vec<&str> = addresses.iter().map(String::as_str).collect();
    Nic::new("rdma-a", &addresses)
}

/// Repeats a request until it succeeds, because the API server may be unavailable.
async fn until_done<F>(what: &str, attempt: impl Fn() -> F) -> Result<()>
where
    F: Future<Output = Result<()>>,
{
    let deadline = Instant::now() + OUTAGE;
    loop {
        let answer = timeout(PATIENCE, attempt()).await.context("no answer").flatten();
        match answer {
            Err(error) if Instant::now() > deadline => {
                return Err(error).with_context(|| format!("cannot {what} for {OUTAGE:?}"));
            }
            Err(_) => sleep(AGAIN).await,
            done => return done,
        }
    }
}

/// Returns the status code of an error from the API server; `None` for other errors.
pub(super) fn code(error: &anyhow::Error) -> Option<u16> {
    match error.downcast_ref::<kube::Error>() {
        Some(kube::Error::Api(status)) => Some(status.code),
        _ => None,
    }
}
