//! The table of valid and invalid objects in `crds/tests/rules`, checked by a real API server. The
//! Rust functions are checked against the same table.

#[path = "../../crds/tests/rules/table.rs"]
mod table;

use anyhow::{Context as _, Result, anyhow, ensure};
use http::Method;
use kube::Client;
use kube::core::TypeMeta;
use multinet_testing::objects::Namespace;
use multinet_testing::tools::repository;
use serde_json::Value;

use crate::shared;
use table::Row;

/// Verdict of the API server on an object: the object, or the message against it.
type Verdict = Result<Value, String>;

/// Sends a request with an object. Returns the verdict; fails if the API server gives none.
async fn request(client: &Client, method: Method, url: &str, object: &Value) -> Result<Verdict> {
    let request = http::Request::builder()
        .method(method)
        .uri(url)
        .header("content-type", "application/json")
        .body(serde_json::to_vec(object)?)?;
    match client.request::<Value>(request).await {
        Ok(object) => Ok(Ok(object)),
        Err(kube::Error::Api(status)) if (400..500).contains(&status.code) => Ok(Err(status.message.clone())),
        Err(error) => Err(error.into()),
    }
}

/// Returns the API server's verdict on a row of the table.
async fn judge(namespace: &Namespace, row: &Row) -> Result<Verdict> {
    const DRY: &str = "?dryRun=All&fieldValidation=Warn";
    let objects = namespace.objects();
    let client = objects.client();
    let types: TypeMeta = serde_json::from_value(row.object.clone())?;
    let all = objects.api(&types, Some(namespace.name())).await?.resource_url().to_owned();
    let Some(old) = &row.old else {
        return request(&client, Method::POST, &format!("{all}{DRY}"), &row.object).await;
    };

    let created = request(&client, Method::POST, &all, old).await?;
    let created = created.map_err(|said| anyhow!("the old object is rejected: {said}"))?;
    let metadata =
        |field: &str| created["metadata"][field].as_str().context("a created object without metadata");
    let mut object = row.object.clone();
    object["metadata"]["resourceVersion"] = metadata("resourceVersion")?.into();
    let one = format!("{all}/{}", metadata("name")?);
    let verdict = request(&client, Method::PUT, &format!("{one}{DRY}"), &object).await?;
    let deleted = request(&client, Method::DELETE, &one, &Value::Null).await?;
    ensure!(deleted.is_ok(), "cannot delete the old object: {deleted:?}");
    Ok(verdict)
}

/// Returns whether a message names a field and says in words what is allowed there. Exempt are the
/// API server's own note that it skipped rules after more basic errors, which names no field, and
/// fields of endpoints, which patterns check because rules would cost too much.
fn is_clear(said: &str) -> bool {
    let names_a_field = !said.contains("<nil>: ") || said.contains("some validation rules were not checked");
    names_a_field && (!said.contains("should match") || said.contains("spec.endpoints["))
}

#[tokio::test]
async fn the_api_server_and_the_table_agree() -> Result<()> {
    let cluster = shared::bystander().await?;
    let namespace = cluster.temp_namespace("rules").await?;
    let rows = table::rows(&repository().join("crds/tests/rules")).map_err(|error| anyhow!("{error}"))?;
    ensure!(rows.len() > 250, "only {} rows", rows.len());
    let mut wrong = Vec::new();
    for row in &rows {
        let said = judge(&namespace, row).await.with_context(|| row.name.clone())?.err();
        wrong.extend(row.contradiction(said.as_deref()));
        wrong.extend(said.filter(|said| !is_clear(said)).map(|said| format!("{}: {said}", row.name)));
    }
    ensure!(wrong.is_empty(), "{} of {} rows:\n{}", wrong.len(), rows.len(), wrong.join("\n"));
    Ok(())
}
