//! Pods that come, change and go, by chance.

use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use kube::api::ListParams;
use multinet_testing::pods::{Nic, Pod as NewPod, Pods};
use tokio::sync::oneshot;
use tokio::task::JoinHandle;
use tokio::time::{Instant, sleep, timeout};

use super::model::{APPS, Model, Phase, Pod};
use super::random::Random;

/// How many pods there are: below the one only new ones come, above the other some go.
const FEW: usize = 12;
const MANY: usize = 36;

/// How long the API server may be away.
const OUTAGE: Duration = Duration::from_secs(120);

/// How long a single request may take before it is sent again.
const PATIENCE: Duration = Duration::from_secs(10);

/// The pause before that.
const AGAIN: Duration = Duration::from_millis(100);

/// The longest pause between two changes, in milliseconds.
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
    /// Another pod gets the address.
    Replace,
}

/// The likelier ones stand there more often.
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

/// Changes pods until it is told to stop, or cannot.
#[derive(Debug)]
pub(super) struct Churn {
    stop: oneshot::Sender<()>,
    task: JoinHandle<Result<(usize, Worker)>>,
}

impl Churn {
    /// Begins.
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

    /// Ends. Fails if a change was not possible, or there were none.
    pub(super) async fn end(self) -> Result<Worker> {
        // Gone if it has stopped by itself, which the task's result explains.
        let _ = self.stop.send(());
        let (count, worker) = self.task.await.context("the churn panicked")??;
        ensure!(count > 0, "nothing was changed");
        eprintln!("{count} changes of pods");
        Ok(worker)
    }
}

/// Makes one change after another, and keeps the model in step.
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

    /// Makes so many pods to begin with.
    pub(super) async fn populate(&mut self, count: usize) -> Result<()> {
        for _ in 0..count {
            self.create().await?;
        }
        Ok(())
    }

    /// Fails if the pods are not what the model says: then the test has lost count, not the
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

    /// One that nothing has been called by yet.
    fn number(&mut self) -> u16 {
        self.next += 1;
        self.next
    }

    /// Makes a pod.
    async fn start(&self, name: &str, pod: Pod) -> Result<()> {
        let addresses = pod.addresses().map(|address| address.to_string());
        let new = NewPod::new(name).label("app", pod.app).nics(&[nic(&addresses)]);
        insist("make it", || async {
            match self.pods.create(new.clone()).await {
                // A request before this one was not answered, but done.
                Err(error) if code(&error) == Some(409) => Ok(()),
                created => created.map(drop),
            }
        })
        .await?;
        if pod.phase == Phase::Running {
            insist("run it", || async { self.pods.run(name).await.map(drop) }).await?;
            insist("probe it", || async { self.pods.ready(name, pod.ready).await.map(drop) }).await?;
        }
        self.model.set(name, Some(pod));
        Ok(())
    }

    async fn remove(&self, name: &str) -> Result<()> {
        insist("remove it", || async {
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
                insist("probe it", || async { pods.ready(name, pod.ready).await.map(drop) }).await?;
            }
            Change::Probe if pod.phase == Phase::Pending => {
                pod.phase = Phase::Running;
                insist("run it", || async { pods.run(name).await.map(drop) }).await?;
            }
            Change::Move => {
                (pod.number, pod.fresh) = (self.number(), true);
                let addresses = pod.addresses().map(|address| address.to_string());
                insist("report it", || async { pods.report(name, &[nic(&addresses)]).await.map(drop) })
                    .await?;
            }
            Change::Relabel => {
                (pod.app, pod.fresh) = (self.random.one_of(&APPS).copied().context("no app")?, false);
                insist("label it", || async { pods.label(name, "app", Some(pod.app)).await.map(drop) })
                    .await?;
            }
            Change::Finish if !pod.leaving => {
                pod.phase = Phase::Succeeded;
                insist("finish it", || async { pods.phase(name, "Succeeded").await.map(drop) }).await?;
            }
            Change::Terminate if pod.phase == Phase::Running => {
                pod.leaving = true;
                insist("terminate it", || async { pods.terminate(name).await }).await?;
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

/// Tries until it succeeds: the API server may be away.
async fn insist<F>(what: &str, attempt: impl Fn() -> F) -> Result<()>
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

/// The API server's code for an error, if it is one of its.
pub(super) fn code(error: &anyhow::Error) -> Option<u16> {
    match error.downcast_ref::<kube::Error>() {
        Some(kube::Error::Api(status)) => Some(status.code),
        _ => None,
    }
}
