//! From a pod's change to the answer: single changes, changes back to back, and bursts.

use std::time::{Duration, Instant};

use anyhow::{Result, ensure};
use futures::future::try_join_all;
use futures::stream::{self, StreamExt as _, TryStreamExt as _};
use tokio::time::sleep;

use super::bursts::{self, Round};
use super::fleet::{Fleet, Member};
use super::stage::Stage;
use super::watcher::{self, Expected, Sight, Watcher};
use crate::side::Side;

/// Pause between two single changes, in which remaining work finishes. kube-controller-manager,
/// which may send 20 requests per second, handles every third change.
const BETWEEN: Duration = Duration::from_millis(12);

/// Pause after which kube-controller-manager may send a burst of requests again.
pub(crate) const RECOVERY: Duration = Duration::from_secs(2);

/// Rounds in which the sides take turns with changes back to back.
pub(crate) const ROUNDS: usize = 5;

/// Services with a pod that changes in a burst.
pub(crate) const BURST: usize = 20;

/// Concurrent expectations while the fleets settle.
const AT_ONCE: usize = 50;

/// Pods in each service.
pub(crate) const PODS_EACH: usize = 200;

/// Limits of endpoints per slice that are compared.
const LIMITS: [usize; 4] = [100, 25, 10, 4];

/// Pods that change. The sides share none, so they take turns without stopping.
pub(crate) struct Fleets {
    /// One service each, in the order of [`Side::BOTH`]: pods that turn ready and unready.
    pub(crate) single: [Flipping; 2],
    /// One service of ready pods.
    pub(crate) attached: Fleet,
    /// Many services each.
    pub(crate) burst: [Flipping; 2],
    /// Count of address changes.
    addresses: usize,
}

/// A fleet in which about half of each service's pods are ready; each change flips one.
pub(crate) struct Flipping {
    pub(crate) side: Side,
    pub(crate) fleet: Fleet,
    is_ready: Vec<bool>,
    changes: usize,
}

/// Measured values.
#[derive(Debug, Default)]
pub(crate) struct Figures {
    /// Times of the PATCHes alone, for comparison.
    pub(crate) patch: Vec<Duration>,
    /// By side.
    pub(crate) single: [Vec<Duration>; 2],
    pub(crate) attached: Vec<Duration>,
    pub(crate) back_to_back: [Vec<Duration>; 2],
    pub(crate) bursts: Vec<Round>,
}

impl Fleets {
    /// Creates all services and pods: one service, and many, for each side.
    pub(crate) async fn new(stage: &Stage) -> Result<Self> {
        let flipping = async |name, number, side, shape| {
            Flipping::new(Fleet::new(stage, (name, number), shape, &[side]).await?, side).await
        };
        let attached = Fleet::new(stage, ("multus", 2), (1, PODS_EACH), &[Side::Ours]).await?;
        attached.fill(|_| true).await?;
        Ok(Self {
            single: [
                flipping("ready-ours", 0, Side::Ours, (1, PODS_EACH)).await?,
                flipping("ready-core", 1, Side::Core, (1, PODS_EACH)).await?,
            ],
            attached,
            burst: [
                flipping("burst-ours", 3, Side::Ours, (BURST, PODS_EACH)).await?,
                flipping("burst-core", 4, Side::Core, (BURST, PODS_EACH)).await?,
            ],
            addresses: 0,
        })
    }

    /// Returns the number of pods.
    pub(crate) fn pods(&self) -> usize {
        let fleets = self.single.iter().chain(&self.burst).map(|flipping| &flipping.fleet);
        fleets.chain([&self.attached]).map(|fleet| fleet.services * fleet.pods_each).sum()
    }

    /// Waits until both DNS servers answer with the pods' state.
    pub(crate) async fn settled(&self, stage: &Stage) -> Result<()> {
        for flipping in self.single.iter().chain(&self.burst) {
            let watcher = Watcher::start(stage.dns(flipping.side)?, watcher::PAUSE)?;
            let indices: Vec<usize> = (0..flipping.is_ready.len()).collect();
            for some in indices.chunks(AT_ONCE) {
                let sights = some.iter().map(|&index| flipping.expect(&watcher, index));
                wait(sights.collect::<Result<_>>()?).await?;
            }
        }
        Ok(())
    }

    /// Measures single changes by the limit of endpoints per slice. multinet must not run yet; it
    /// is restarted for each limit, and runs with the default in the end.
    pub(crate) async fn by_limit(
        &mut self,
        stage: &mut Stage,
        samples: usize,
    ) -> Result<Vec<(usize, [Vec<Duration>; 2])>> {
        let mut all = Vec::new();
        for limit in LIMITS {
            stage.start_with_slices_of(limit).await?;
            self.settled(stage).await?;
            sleep(RECOVERY).await;
            let watchers = Watcher::of_both(stage)?;
            let mut figures = Figures::default();
            for _ in 0..samples {
                self.one_each(&watchers, &mut figures).await?;
            }
            all.push((limit, figures.single));
            stage.stop(Side::Ours).await?;
            // The controller merges smaller slices only slowly.
            for fleet in [&self.single[0].fleet, &self.attached, &self.burst[0].fleet] {
                fleet.delete_slices().await?;
            }
        }
        stage.start(Side::Ours).await?;
        self.settled(stage).await?;
        Ok(all)
    }

    /// Measures `samples` changes of each kind, and `bursts` bursts of each side.
    pub(crate) async fn measure(&mut self, stage: &Stage, samples: usize, bursts: usize) -> Result<Figures> {
        let mut figures = Figures::default();
        let watchers = Watcher::of_both(stage)?;
        self.one_at_a_time(&watchers, samples, &mut figures).await?;
        for _ in 0..ROUNDS {
            for (side, watcher) in watchers.iter().enumerate() {
                let times = self.single[side].back_to_back(watcher, samples / ROUNDS).await?;
                figures.back_to_back[side].extend(times);
                sleep(RECOVERY).await;
            }
        }
        figures.bursts = bursts::measure(self, stage, bursts).await?;
        Ok(figures)
    }

    /// Makes the three kinds of changes in turn, so that a slow moment of the machine affects all.
    async fn one_at_a_time(
        &mut self,
        watchers: &[Watcher; 2],
        samples: usize,
        figures: &mut Figures,
    ) -> Result<()> {
        for _ in 0..samples {
            self.one_each(watchers, figures).await?;
            figures.attached.push(self.readdress(&watchers[0]).await?);
            sleep(BETWEEN).await;
        }
        Ok(())
    }

    /// Makes one single change for each side.
    async fn one_each(&mut self, watchers: &[Watcher; 2], figures: &mut Figures) -> Result<()> {
        for (side, watcher) in watchers.iter().enumerate() {
            let (patch, time) = self.single[side].flip(watcher).await?;
            figures.patch.push(patch);
            figures.single[side].push(time);
            sleep(BETWEEN).await;
        }
        Ok(())
    }

    /// Changes the address of one pod.
    async fn readdress(&mut self, watcher: &Watcher) -> Result<Duration> {
        let member = Member { service: 0, pod: self.addresses % self.attached.pods_each };
        let address = self.attached.further_address(self.addresses);
        self.addresses += 1;
        let begun = Instant::now();
        let name = self.attached.pod_domain(Side::Ours, 0, address);
        let sight = watcher.expect(Expected { name, address, is_there: true }, begun)?;
        self.attached.readdress(member, address).await?;
        sight.time().await
    }
}

impl Flipping {
    async fn new(fleet: Fleet, side: Side) -> Result<Self> {
        let begins_ready = |pod: usize| pod.is_multiple_of(2);
        fleet.fill(begins_ready).await?;
        let pods = 0..fleet.services * fleet.pods_each;
        let is_ready = pods.map(|index| begins_ready(index % fleet.pods_each)).collect();
        Ok(Self { side, fleet, is_ready, changes: 0 })
    }

    fn member(&self, index: usize) -> Member {
        Member { service: index / self.fleet.pods_each, pod: index % self.fleet.pods_each }
    }

    /// Waits until the answer shows a pod's new state; time counts from `begun`.
    fn expect_since(&self, watcher: &Watcher, index: usize, begun: Instant) -> Result<Sight> {
        let member = self.member(index);
        let address = self.fleet.address(self.side, member);
        let name = self.fleet.pod_domain(self.side, member.service, address);
        watcher.expect(Expected { name, address, is_there: self.is_ready[index] }, begun)
    }

    fn expect(&self, watcher: &Watcher, index: usize) -> Result<Sight> {
        self.expect_since(watcher, index, Instant::now())
    }

    /// Flips the recorded state of the next pod of the one service, and returns the pod's index.
    /// Ready and unready pods take turns.
    fn turn(&mut self) -> usize {
        let index = self.changes % self.is_ready.len();
        self.changes += 1;
        self.is_ready[index] = !self.is_ready[index];
        index
    }

    async fn patch(&self, index: usize) -> Result<()> {
        self.fleet.ready(self.member(index), self.is_ready[index]).await
    }

    /// Flips a pod. Returns the time of the PATCH, and the time until the answer was right.
    async fn flip(&mut self, watcher: &Watcher) -> Result<(Duration, Duration)> {
        let index = self.turn();
        let begun = Instant::now();
        let sight = self.expect_since(watcher, index, begun)?;
        self.patch(index).await?;
        let patched = begun.elapsed();
        Ok((patched, sight.time().await?))
    }

    /// Flips pods as fast as the API server accepts changes. It waits only before it changes a pod
    /// whose last change was not answered yet.
    async fn back_to_back(&mut self, watcher: &Watcher, changes: usize) -> Result<Vec<Duration>> {
        let mut times = Vec::new();
        let mut sights: Vec<Option<Sight>> = Vec::new();
        sights.resize_with(self.is_ready.len(), || None);
        for _ in 0..changes {
            let next = self.changes % self.is_ready.len();
            if let Some(sight) = sights[next].take() {
                times.push(sight.time().await?);
            }
            let index = self.turn();
            sights[index] = Some(self.expect(watcher, index)?);
            self.patch(index).await?;
        }
        times.extend(wait(sights.into_iter().flatten().collect()).await?);
        ensure!(times.len() == changes, "{} times of {changes} changes", times.len());
        Ok(times)
    }

    /// Flips one pod of every service as fast as the API server accepts changes, with `in_flight`
    /// concurrent PATCHes. Each time counts from the pod's own PATCH. Returns the times of the
    /// PATCHes, and the times until the answers were right.
    pub(crate) async fn burst(
        &mut self,
        watcher: &Watcher,
        in_flight: usize,
    ) -> Result<(Vec<Duration>, Vec<Duration>)> {
        let pod = self.changes % self.fleet.pods_each;
        self.changes += 1;
        let indexes: Vec<usize> =
            (0..self.fleet.services).map(|service| service * self.fleet.pods_each + pod).collect();
        for &index in &indexes {
            self.is_ready[index] = !self.is_ready[index];
        }
        let flipping = &*self;
        let patched = stream::iter(indexes).map(async |index| {
            let begun = Instant::now();
            let sight = flipping.expect_since(watcher, index, begun)?;
            flipping.patch(index).await?;
            anyhow::Ok((begun.elapsed(), sight))
        });
        let patched: Vec<_> = patched.buffer_unordered(in_flight).try_collect().await?;
        let (patches, sights): (Vec<_>, Vec<_>) = patched.into_iter().unzip();
        Ok((patches, wait(sights).await?))
    }
}

async fn wait(sights: Vec<Sight>) -> Result<Vec<Duration>> {
    try_join_all(sights.into_iter().map(Sight::time)).await
}
