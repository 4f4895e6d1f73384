//! Plays a user who edits and deletes the controller's slices.

use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use kube::ResourceExt as _;
use kube::api::{DeleteParams, DynamicObject};
use multinet_testing::replica::BOUND;
use multinet_testing::slices::{CONTROLLER, MANAGED_BY, SERVICE_NAME, Slices};
use serde_json::{Value, json};
use tokio::sync::{oneshot, watch};
use tokio::task::JoinHandle;
use tokio::time::timeout;

use super::churn::code;
use super::random::Random;

/// Longest pause between two edits, in milliseconds.
const PAUSE: usize = 150;

/// Task that edits and deletes the slices of one service until it is stopped.
#[derive(Debug)]
pub(super) struct Spoiler {
    stop: oneshot::Sender<()>,
    /// Number of edits and deletions so far.
    count: watch::Receiver<usize>,
    task: JoinHandle<Result<()>>,
}

impl Spoiler {
    /// Starts the task.
    pub(super) fn begin(slices: Slices<DynamicObject>, mut random: Random) -> Self {
        let (stop, mut stopped) = oneshot::channel();
        let (counter, count) = watch::channel(0);
        let task = tokio::spawn(async move {
            loop {
                let is_spoilt = spoil(&slices, &mut random).await?;
                counter.send_modify(|count| *count += usize::from(is_spoilt));
                let pause = random.milliseconds(PAUSE);
                if timeout(pause + Duration::from_millis(1), &mut stopped).await.is_ok() {
                    return Ok(());
                }
            }
        });
        Self { stop, count, task }
    }

    /// Stops the task once it has changed a slice: a short run may have seen none that it could
    /// change. Fails if it changes none.
    pub(super) async fn end(mut self) -> Result<()> {
        let is_spoilt = timeout(BOUND, self.count.wait_for(|&count| count > 0)).await;
        let is_spoilt = is_spoilt.is_ok_and(|outcome| outcome.is_ok());
        // Sending fails if the task has stopped by itself. Its result has the reason.
        let _ = self.stop.send(());
        self.task.await.context("the spoiler panicked")??;
        ensure!(is_spoilt, "no slice was spoilt");
        eprintln!("{} edits and deletions of slices", *self.count.borrow());
        Ok(())
    }
}

/// Spoils one slice that has its labels and its owner; without both, the controller could not
/// recognise the slice as its own. Returns whether a slice was spoilt.
async fn spoil(slices: &Slices<DynamicObject>, random: &mut Random) -> Result<bool> {
    let mut intact = slices.list().await?;
    intact.retain(|slice| {
        let managed = slice.labels().get(MANAGED_BY).is_some_and(|by| by == CONTROLLER);
        managed && slice.labels().contains_key(SERVICE_NAME) && !slice.owner_references().is_empty()
    });
    let Some(slice) = random.one_of(&intact) else { return Ok(false) };
    let address = if slice.data["spec"]["addressType"] == "IPv6" { "fd00:9::9" } else { "10.9.9.9" };
    let stranger = json!([{"addresses": [address], "conditions": {"ready": true}}]);
    let edits = [
        None,
        Some(json!({"spec": {"endpoints": []}})),
        Some(json!({"spec": {"endpoints": stranger}})),
        Some(json!({"spec": {"network": {"alias": "rail7"}}})),
        Some(json!({"spec": {"ports": []}})),
        Some(json!({"metadata": {"ownerReferences": null}})),
        Some(json!({"metadata": {"labels": {MANAGED_BY: null}}})),
        Some(json!({"metadata": {"labels": {SERVICE_NAME: null}}})),
    ];
    let name = slice.name_any();
    let spoilt = match random.one_of(&edits).cloned().flatten() {
        Some(edit) => slices.edit(&name, on_version(edit, slice)).await.map(drop),
        None => {
            let deleted = slices.api().delete(&name, &DeleteParams::default()).await;
            deleted.map(drop).context("cannot delete a slice")
        }
    };
    match spoilt {
        Ok(()) => Ok(true),
        // The controller has written or deleted the slice in the meantime.
        Err(error) if matches!(code(&error), Some(404 | 409)) => Ok(false),
        Err(error) => Err(error),
    }
}

/// Makes an edit conditional on the version that `slice` has.
fn on_version(mut edit: Value, slice: &DynamicObject) -> Value {
    edit["metadata"]["resourceVersion"] = json!(slice.resource_version());
    edit
}
