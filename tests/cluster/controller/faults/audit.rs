//! Audit log of the API server: the writes with their users, and the holders of the lease at the
//! time.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result, bail, ensure};
use k8s_openapi::jiff::Timestamp;
use serde_json::{Value, json};
use tempfile::TempDir;

/// Audit log of all writes by controllers.
#[derive(Debug)]
pub(super) struct Audit {
    folder: TempDir,
}

/// Writes of a replica that it abandoned when it lost the lease, and that the network may deliver
/// late. Late writes of slices need not be counted: the slices have changed by then, so that the
/// API server rejects such writes.
#[derive(Debug)]
pub(super) struct GivenUp {
    pub(super) account: &'static str,
    pub(super) statuses: u64,
    pub(super) events: u64,
}

/// Successful write.
#[derive(Debug, Clone)]
struct Write {
    user: String,
    /// Description, as `update of multinetworkendpointslices vision/infer-abc`.
    what: String,
    resource: String,
    /// Whether it names the version that it replaces, and so cannot undo a newer write.
    is_conditional: bool,
    /// Identity in a write of the lease that holds it from then on; empty if it is released. `None`
    /// for other objects.
    holder: Option<String>,
    /// Version of the object after the write; `None` after a deletion.
    version: Option<u64>,
    received: Timestamp,
    completed: Timestamp,
}

impl Audit {
    /// Creates an empty log.
    pub(super) fn new() -> Result<Self> {
        let audit = Self { folder: TempDir::with_prefix("multinet-audit-")? };
        let resources = json!([
            {"group": "multinetwork.numaproj.io"},
            {"group": "discovery.k8s.io"},
            {"group": "events.k8s.io"},
            {"group": "coordination.k8s.io"},
        ]);
        let verbs = ["create", "update", "patch", "delete"];
        let policy = json!({
            "apiVersion": "audit.k8s.io/v1",
            "kind": "Policy",
            "omitStages": ["RequestReceived"],
            "omitManagedFields": true,
            "rules": [{"level": "RequestResponse", "verbs": verbs, "resources": resources}, {"level": "None"}],
        });
        fs::write(audit.file("policy.json"), policy.to_string())?;
        Ok(audit)
    }

    fn file(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    /// Returns the flags for an API server to write this log.
    pub(super) fn flags(&self) -> [String; 2] {
        let flag = |name: &str, file: &Path| format!("--audit-{name}={}", file.display());
        [flag("policy-file", &self.file("policy.json")), flag("log-path", &self.file("audit.log"))]
    }

    /// Fails unless each of these accounts wrote something, and wrote only while it held the lease.
    /// Exempt are the abandoned writes in `late`: once sent, they cannot be revoked. Returns how
    /// often the holder of the lease changed.
    pub(super) fn only_holders_wrote(&self, accounts: &[&str], late: Vec<GivenUp>) -> Result<usize> {
        let user = |account: &str| format!("system:serviceaccount:multinet-system:{account}");
        let users: Vec<String> = accounts.iter().map(|account| user(account)).collect();
        let mut given_up: BTreeMap<String, GivenUp> =
            late.into_iter().map(|given_up| (user(given_up.account), given_up)).collect();
        let writes = self.writes()?;
        let (leases, writes): (Vec<&Write>, Vec<&Write>) = writes
            .iter()
            .filter(|write| users.contains(&write.user))
            .partition(|write| write.holder.is_some());
        for user in &users {
            let count = writes.iter().filter(|write| write.user == *user).count();
            ensure!(count > 0, "{user} wrote nothing");
            eprintln!("{count} writes of {user}");
        }
        for write in &writes {
            let before = |lease: &&&Write| match (lease.version, write.version) {
                (Some(lease), Some(version)) => lease < version,
                _ => lease.completed < write.received,
            };
            let lease = leases.iter().filter(before).max_by_key(|lease| lease.version);
            let Write { user, what, .. } = write;
            let lease = lease.with_context(|| format!("{what} by {user} before the lease was taken"))?;
            if lease.user == *user && lease.holder.as_deref() != Some("") {
                continue;
            }
            let late = given_up.get_mut(user).and_then(|left| match write.resource.as_str() {
                "multinetworkservices" if write.is_conditional => Some(&mut left.statuses),
                "events" => Some(&mut left.events),
                _ => None,
            });
            let late = late.filter(|left| **left > 0);
            *late.with_context(|| {
                format!("{what} by {user} without the lease: {write:#?}\nthe lease was {lease:#?}")
            })? -= 1;
            eprintln!("{what} by {user} arrived late");
        }
        Ok(leases.windows(2).filter(|pair| pair[0].user != pair[1].user).count())
    }

    /// Returns all successful writes that changed an object, in the order of their versions.
    fn writes(&self) -> Result<Vec<Write>> {
        let mut versioned: BTreeMap<u64, Write> = BTreeMap::new();
        let mut others = Vec::new();
        for line in fs::read_to_string(self.file("audit.log"))?.lines() {
            let entry: Value =
                serde_json::from_str(line).with_context(|| format!("not an audit entry: {line}"))?;
            let Some(write) = read(&entry)? else { continue };
            let Some(version) = write.version else {
                others.push(write);
                continue;
            };
            match versioned.get(&version) {
                Some(known) if known.completed <= write.completed => {}
                _ => drop(versioned.insert(version, write)),
            }
        }
        Ok(versioned.into_values().chain(others).collect())
    }
}

fn read(entry: &Value) -> Result<Option<Write>> {
    let code = entry["responseStatus"]["code"].as_u64().unwrap_or_default();
    if entry["stage"] != "ResponseComplete" || !(200..300).contains(&code) {
        return Ok(None);
    }
    let text = |pointer: &str| entry.pointer(pointer).and_then(Value::as_str).unwrap_or_default();
    let (verb, resource) = (text("/verb"), text("/objectRef/resource"));
    let version = match verb {
        "delete" => None,
        _ => Some(
            text("/responseObject/metadata/resourceVersion").parse().context("a write without version")?,
        ),
    };
    let holder = (resource == "leases").then(|| text("/responseObject/spec/holderIdentity").to_owned());
    if resource.is_empty() {
        bail!("a write without an object: {entry}");
    }
    let object = format!("{}/{}", text("/objectRef/namespace"), text("/objectRef/name"));
    Ok(Some(Write {
        user: text("/user/username").to_owned(),
        what: format!("{verb} of {resource} {object}"),
        resource: resource.to_owned(),
        is_conditional: !text("/requestObject/metadata/resourceVersion").is_empty(),
        holder,
        version,
        received: text("/requestReceivedTimestamp").parse()?,
        completed: text("/stageTimestamp").parse()?,
    }))
}
