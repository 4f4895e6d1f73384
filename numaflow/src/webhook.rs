//! Answers of the webhook: a Vertex as Numaflow writes it in, a JSON patch out.

use std::sync::Arc;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use hyper::StatusCode;
use kube::{Api, Client};
use multinet_runtime::Readiness;
use multinet_runtime::watch::Problem;
use serde::{Deserialize, Serialize};
use serde_json::Value;
use tokio::time::{Instant, timeout};

use crate::annotation::Declared;
use crate::index::State;
use crate::inject::{JsonObject, changes};
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
    spec: JsonObject,
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
pub type HttpError = (StatusCode, String);

impl Webhook {
    /// Creates the webhook.
    pub fn new(client: Client, state: Arc<State>, listed: Readiness, metrics: Metrics) -> Self {
        Self { client, state, listed, metrics }
    }

    /// Answers an AdmissionReview.
    ///
    /// # Errors
    ///
    /// [`HttpError`], if the plan cannot be known now. The API server then does what
    /// `failurePolicy` says.
    pub async fn review(&self, body: &[u8]) -> Result<Vec<u8>, HttpError> {
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

    async fn answer(&self, body: &[u8]) -> Result<(Vec<u8>, bool), HttpError> {
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
        let changes = changes(&request.namespace, &request.object.spec, end.as_ref(), settings);
        let answer = respond(&request.uid, &changes)
            .map_err(|error| (StatusCode::INTERNAL_SERVER_ERROR, format!("no answer: {error}")))?;
        Ok((answer, !changes.is_empty()))
    }

    /// Reads what a Pipeline declares now. The watch may be behind, since Numaflow writes Vertices
    /// a moment after their Pipeline.
    async fn read(&self, namespace: &str, name: &str) -> Result<Declared, HttpError> {
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

/// AdmissionReview that admits an object.
#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct Answer<'a> {
    api_version: &'static str,
    kind: &'static str,
    response: Response<'a>,
}

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct Response<'a> {
    uid: &'a str,
    allowed: bool,
    #[serde(flatten)]
    patch: Option<Patch>,
}

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct Patch {
    patch_type: &'static str,
    /// Operations in JSON, in base64.
    patch: String,
}

/// Operation of a JSON patch (RFC 6902).
#[derive(Serialize)]
struct Operation<'a> {
    op: &'static str,
    path: String,
    value: &'a Value,
}

/// Returns the answer that admits a Vertex with these fields of its spec changed.
fn respond(uid: &str, changes: &JsonObject) -> serde_json::Result<Vec<u8>> {
    let operation = |(field, value)| Operation { op: "add", path: format!("/spec/{field}"), value };
    let operations: Vec<_> = changes.iter().map(operation).collect();
    let patch = if operations.is_empty() {
        None
    } else {
        Some(Patch { patch_type: "JSONPatch", patch: STANDARD.encode(serde_json::to_vec(&operations)?) })
    };
    let response = Response { uid, allowed: true, patch };
    serde_json::to_vec(&Answer { api_version: "admission.k8s.io/v1", kind: "AdmissionReview", response })
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn changed_fields_are_operations_of_a_patch() {
        let answer = |changes: Value| -> Value {
            serde_json::from_slice(&respond("7", changes.as_object().unwrap()).unwrap()).unwrap()
        };
        let operations = r#"[{"op":"add","path":"/spec/scale","value":{"min":1}}]"#;
        let response = json!({
            "uid": "7", "allowed": true, "patchType": "JSONPatch", "patch": STANDARD.encode(operations),
        });
        let review =
            json!({"apiVersion": "admission.k8s.io/v1", "kind": "AdmissionReview", "response": response});
        assert_eq!(answer(json!({"scale": {"min": 1}})), review);
        assert_eq!(answer(json!({}))["response"], json!({"uid": "7", "allowed": true}));
    }
}
