//! Watches that feed the same index, and what they share.

use std::fmt::Debug;
use std::sync::Arc;

use kube::{Api, Client, Resource};
use serde::de::DeserializeOwned;
use tokio_util::sync::CancellationToken;

use crate::{Guarded, Index, Readiness, Refresh, WatchConfig, WatchMetrics, watch};

/// Starts watches that feed the same index.
pub struct Watches<I> {
    /// Client of the API server.
    pub client: Client,
    /// Request for fresh lists, which all watches follow.
    pub refresh: Refresh,
    /// Index that the watches feed.
    pub index: Arc<I>,
    /// Metrics of all watches.
    pub metrics: WatchMetrics,
}

impl<I> Watches<I> {
    /// Returns a watch of the objects of kind `K`, or of those with these labels, that ends with
    /// `stop`. It registers with `readiness` at once. `hint` tells how a cluster gets the kind.
    pub fn watch<K>(
        &self,
        readiness: &Readiness,
        hint: &str,
        labels: Option<&str>,
        stop: &CancellationToken,
    ) -> impl Future<Output = ()> + Send + use<K, I>
    where
        K: Resource<DynamicType = ()> + Clone + Debug + DeserializeOwned + Send + 'static,
        I: Index<K>,
    {
        let api = Api::<Guarded<K>>::all(self.client.clone());
        let (labels, refresh) = (labels.map(str::to_owned), self.refresh.clone());
        let config = WatchConfig { labels, refresh, ..WatchConfig::new(api, hint) };
        let guard = readiness.register(K::plural(&()));
        watch(config, Arc::clone(&self.index), guard, self.metrics.clone(), stop.clone())
    }
}
