//! Plays a user who edits and deletes the controller's slices.

use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use kube::ResourceExt as _;
use kube::api::{DeleteParams, DynamicObject};
use multinet_testing::slices::{CONTROLLER, MANAGED_BY, SERVICE_NAME, Slices};
use serde_json::{Value, json};
use tokio::sync::oneshot;
use tokio::task::JoinHandle;
use tokio::time::timeout;

use super::churn::code;
use super::random::Random;

/// The longest pause between two strokes, in milliseconds.
const PAUSE: usize = 150;

/// Spoils the slices of one service until it is told to stop.
#[derive(Debug)]
pub(super) struct Hands {
    stop: oneshot::Sender<()>,
    task: JoinHandle<Result<usize>>,
}

impl Hands {
    /// Begins.
    pub(super) fn begin(slices: Slices<DynamicObject>, mut random: Random) -> Self {
        let (stop, mut stopped) = oneshot::channel();
        let task = tokio::spawn(async move {
            let mut count = 0;
            loop {
                count += usize::from(spoil(&slices, &mut random).await?);
                let pause = random.milliseconds(PAUSE);
                if timeout(pause + Duration::from_millis(1), &mut stopped).await.is_ok() {
                    return Ok(count);
                }
            }
        });
        Self { stop, task }
    }

    /// Ends. Fails if nothing was spoilt.
    pub(super) async fn end(self) -> Result<()> {
        // Gone if it has stopped by itself, which the task's result explains.
        let _ = self.stop.send(());
        let count = self.task.await.context("the hands panicked")??;
        ensure!(count > 0, "nothing was spoilt");
        eprintln!("{count} slices spoilt");
        Ok(())
    }
}

/// Spoils one slice that is intact. (Without its labels and its owner, a slice could not be told to
/// be the controller's.) Returns whether there was one.
async fn spoil(slices: &Slices<DynamicObject>, random: &mut Random) -> Result<bool> {
    let mut whole = slices.list().await?;
    whole.retain(|slice| {
        let managed = slice.labels().get(MANAGED_BY).is_some_and(|by| by == CONTROLLER);
        managed && slice.labels().contains_key(SERVICE_NAME) && !slice.owner_references().is_empty()
    });
    let Some(slice) = random.one_of(&whole) else { return Ok(false) };
    let address = if slice.data["spec"]["addressType"] == "IPv6" { "fd00:9::9" } else { "10.9.9.9" };
    let stranger = json!([{"addresses": [address], "conditions": {"ready": true}}]);
    let strokes = [
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
    let spoilt = match random.one_of(&strokes).cloned().flatten() {
        Some(stroke) => slices.edit(&name, at(stroke, slice)).await.map(drop),
        None => {
            let deleted = slices.api().delete(&name, &DeleteParams::default()).await;
            deleted.map(drop).context("cannot delete a slice")
        }
    };
    match spoilt {
        Ok(()) => Ok(true),
        // The controller was faster.
        Err(error) if matches!(code(&error), Some(404 | 409)) => Ok(false),
        Err(error) => Err(error),
    }
}

/// The same, for the version that was looked at only.
fn at(mut stroke: Value, slice: &DynamicObject) -> Value {
    stroke["metadata"]["resourceVersion"] = json!(slice.resource_version());
    stroke
}
