//! Answers of the webhook: a Vertex as Numaflow writes it in, a JSON patch out.

use std::sync::Arc;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use hyper::StatusCode;
use kube::{Api, Client};
use multinet_runtime::Readiness;
use multinet_runtime::watch::Problem;
use serde::Deserialize;
use serde_json::{Value, json};
use tokio::time::{Instant, timeout};

use crate::annotation::Declared;
use crate::index::State;
use crate::inject::{Object, patch};
use crate::limits::webhook::READ_TIME;
use crate::metrics::Metrics;
use crate::objects::Pipeline;

/// Path of the webhook in the MutatingWebhookConfiguration.
pub const PATH: &str = "/vertices";

/// AdmissionReview with a Vertex.
#[derive(Debug, Deserialize)]
struct Review {
    request: Request,
}

#[derive(Debug, Deserialize)]
struct Request {
    uid: String,
    namespace: String,
    object: Reviewed,
}

#[derive(Debug, Deserialize)]
struct Reviewed {
    spec: Object,
}

impl Request {
    /// Returns the names of the Pipeline and of the vertex in it.
    fn names(&self) -> Option<(&str, &str)> {
        let text = |field: &str| self.object.spec.get(field)?.as_str();
        Some((text("pipelineName")?, text("name")?))
    }
}

/// Webhook for Vertices.
pub struct Webhook {
    client: Client,
    state: Arc<State>,
    /// Readiness of the watches, without which edges of other Pipelines would be missed.
    listed: Readiness,
    metrics: Metrics,
}

/// HTTP error, and its text for the API server's log.
pub type Refusal = (StatusCode, String);

impl Webhook {
    /// Creates the webhook.
    pub fn new(client: Client, state: Arc<State>, listed: Readiness, metrics: Metrics) -> Self {
        Self { client, state, listed, metrics }
    }

    /// Answers an AdmissionReview.
    ///
    /// # Errors
    ///
    /// [`Refusal`], if the plan cannot be known now. The API server then does what `failurePolicy`
    /// says.
    pub async fn review(&self, body: &[u8]) -> Result<Vec<u8>, Refusal> {
        let begun = Instant::now();
        let answer = self.answer(body).await;
        let result = match &answer {
            Ok((_, true)) => "injected",
            Ok((_, false)) => "unchanged",
            Err(_) => "failed",
        };
        self.metrics.reviewed(result, begun.elapsed());
        answer.map(|(answer, _)| answer)
    }

    async fn answer(&self, body: &[u8]) -> Result<(Vec<u8>, bool), Refusal> {
        let Review { request } = serde_json::from_slice(body).map_err(|error| {
            (StatusCode::BAD_REQUEST, format!("not an AdmissionReview of a Vertex: {error}"))
        })?;
        let Some((pipeline, vertex)) = request.names() else {
            return Err((StatusCode::BAD_REQUEST, "the Vertex has no pipelineName or name".to_owned()));
        };
        // A replica that has just started lists within a moment. The API server would go on without
        // the webhook.
        if timeout(READ_TIME, self.listed.until_ready()).await.is_err() {
            let text = "multinet-numaflow has not listed all Pipelines yet".to_owned();
            return Err((StatusCode::SERVICE_UNAVAILABLE, text));
        }
        let read = self.read(&request.namespace, pipeline).await?;
        let end = self.state.end(&request.namespace, (pipeline, &read), vertex);
        let settings = self.state.settings();
        let operations = patch(&request.namespace, &request.object.spec, end.as_ref(), settings);
        Ok((respond(&request.uid, &operations), !operations.is_empty()))
    }

    /// Reads what a Pipeline declares now. The watch may be behind, since Numaflow writes Vertices
    /// a moment after their Pipeline.
    async fn read(&self, namespace: &str, name: &str) -> Result<Declared, Refusal> {
        let api = Api::<Pipeline>::namespaced(self.client.clone(), namespace);
        let problem = match timeout(READ_TIME, api.get_opt(name)).await {
            Ok(Ok(pipeline)) => {
                return Ok(pipeline.map(|pipeline| Declared::of(&pipeline)).unwrap_or_default());
            }
            Ok(Err(error)) => Problem::from(error).message,
            Err(_) => format!("no answer within {} s", READ_TIME.as_secs()),
        };
        Err((
            StatusCode::INTERNAL_SERVER_ERROR,
            format!("cannot read Pipeline {namespace}/{name}: {problem}"),
        ))
    }
}

/// Returns an AdmissionReview that admits the object, with these changes.
fn respond(uid: &str, operations: &[Value]) -> Vec<u8> {
    let mut response = json!({"uid": uid, "allowed": true});
    if !operations.is_empty() {
        response["patchType"] = json!("JSONPatch");
        response["patch"] = json!(STANDARD.encode(Value::from(operations).to_string()));
    }
    let review =
        json!({"apiVersion": "admission.k8s.io/v1", "kind": "AdmissionReview", "response": response});
    review.to_string().into_bytes()
}
