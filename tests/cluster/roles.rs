//! The shipped roles of a program: unchanged, with a verb less, and for other ServiceAccounts.

use std::fmt;
use std::fs;
use std::path::Path;

use anyhow::{Result, ensure};
use k8s_openapi::api::authorization::v1::SubjectAccessReview;
use kube::api::{DynamicObject, PostParams};
use kube::{Api, Client};
use multinet_testing::cluster::Cluster;
use multinet_testing::objects::{Objects, parse};
use multinet_testing::program::{BOUND, Options, Program};
use multinet_testing::tools::repository;
use multinet_testing::wait::eventually;
use serde_json::{Value, json};

/// Namespace of our programs and their Leases.
pub(crate) const NAMESPACE: &str = "multinet-system";

/// Permission for one verb on one resource.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Permission {
    pub(crate) group: String,
    /// Resource with its subresource, as `multinetworkservices/status`.
    pub(crate) resource: String,
    pub(crate) verb: String,
}

impl Permission {
    pub(crate) fn new(group: &str, resource: &str, verb: &str) -> Self {
        Self { group: group.to_owned(), resource: resource.to_owned(), verb: verb.to_owned() }
    }

    /// Returns the resource as messages name it: `plural.group/subresource`.
    pub(crate) fn title(&self) -> String {
        let Self { group, resource, .. } = self;
        match resource.split_once('/') {
            Some((plural, subresource)) => format!("{plural}.{group}/{subresource}"),
            None if group.is_empty() => resource.clone(),
            None => format!("{resource}.{group}"),
        }
    }

    /// Waits until a program reports this permission as missing. Fails if it misses another one.
    pub(crate) async fn is_missed(&self, program: &Program) -> Result<()> {
        let wanted = format!("cannot {} resource {:?}", self.verb, self.resource);
        eventually(&format!("{wanted} to be reported"), BOUND, async || {
            // A program may end with the message.
            let readyz = program.readyz().await.map(|(_, body)| body).unwrap_or_default();
            // The log escapes quotes.
            let said = format!("{}\n{readyz}", program.log()).replace('\\', "");
            ensure!(said.contains(&wanted), "{said}");
            let mut all = said.match_indices("cannot ").filter(|(at, _)| {
                said[*at..].split('"').next().is_some_and(|start| start.ends_with(" resource "))
            });
            let other = all.find(|(at, _)| !said[*at..].starts_with(&wanted));
            ensure!(other.is_none(), "another permission is missing\n{said}");
            Ok(())
        })
        .await
    }

    /// Returns whether the rule grants this permission.
    fn is_in(&self, rule: &Value) -> bool {
        let has = |field: &str, wanted: &str| texts(&rule[field]).contains(&wanted);
        has("apiGroups", &self.group) && has("resources", &self.resource) && has("verbs", &self.verb)
    }
}

impl fmt::Display for Permission {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} of {}", self.verb, self.title())
    }
}

/// ServiceAccount with its roles and their bindings.
#[derive(Debug, Clone)]
pub(crate) struct Roles {
    account: String,
    objects: Vec<DynamicObject>,
}

impl Roles {
    /// Returns the shipped ServiceAccount and roles of the controller.
    pub(crate) fn of_controller() -> Result<Self> {
        Self::shipped("multinet-controller", "base/controller-rbac.yaml")
    }

    /// Returns the shipped ServiceAccount and roles of a program, from a file below
    /// `deploy/kustomize`.
    pub(crate) fn shipped(program: &str, file: &str) -> Result<Self> {
        let file = repository().join("deploy/kustomize").join(file);
        Ok(Self { account: program.to_owned(), objects: parse(&fs::read_to_string(file)?)? })
    }

    /// Returns the same for another ServiceAccount of a name, with objects of that name wherever
    /// the roles name one, such as the Lease.
    pub(crate) fn renamed(self, name: &str) -> Result<Self> {
        let renamed = |object: &DynamicObject| -> Result<DynamicObject> {
            let text = serde_json::to_string(object)?.replace(&self.account, name);
            Ok(serde_json::from_str(&text)?)
        };
        let objects = self.objects.iter().map(renamed).collect::<Result<_>>()?;
        Ok(Self { account: name.to_owned(), objects })
    }

    /// Returns the same for another ServiceAccount, with roles of its own. The Lease stays the
    /// shared one.
    pub(crate) fn of_account(mut self, name: &str) -> Self {
        let shipped = std::mem::replace(&mut self.account, name.to_owned());
        for object in &mut self.objects {
            let renamed = |text: &str| text.replacen(&shipped, name, 1);
            object.metadata.name = object.metadata.name.as_deref().map(renamed);
            for pointer in ["/roleRef/name", "/subjects/0/name"] {
                if let Some(field) = object.data.pointer_mut(pointer) {
                    *field = json!(renamed(field.as_str().unwrap_or_default()));
                }
            }
        }
        self
    }

    /// Applies these roles without a permission, under another name, which the Lease has too.
    /// Returns the options of a program with that account and Lease.
    pub(crate) async fn start_without(
        &self,
        cluster: &Cluster,
        permission: &Permission,
        name: &str,
        options: fn(&Path) -> Options,
    ) -> Result<Options> {
        let roles = self.clone().renamed(name)?;
        roles.clone().without(permission)?.apply(&cluster.objects().await?).await?;
        let client = cluster.client().await?;
        // The authorizer notices the roles one by one.
        for other in roles.permissions() {
            roles.wait_for_access(&client, &other, other != *permission).await?;
        }
        let kubeconfig = cluster.service_account_kubeconfig(NAMESPACE, name, cluster.address()).await?;
        Ok(options(&kubeconfig).flag("--lease-name", name).flag("--lease-duration", "3s"))
    }

    /// Leaves out the role for the Lease.
    pub(crate) fn without_lease(mut self) -> Self {
        self.objects.retain(|object| {
            let kind = object.types.as_ref().map_or("", |types| types.kind.as_str());
            !["Role", "RoleBinding"].contains(&kind)
        });
        self
    }

    /// Returns all granted permissions.
    pub(crate) fn permissions(&self) -> Vec<Permission> {
        let mut all = Vec::new();
        for rule in self.objects.iter().flat_map(rules) {
            for group in texts(&rule["apiGroups"]) {
                for resource in texts(&rule["resources"]) {
                    let verbs = texts(&rule["verbs"]);
                    all.extend(verbs.into_iter().map(|verb| Permission::new(group, resource, verb)));
                }
            }
        }
        all
    }

    /// Leaves out one permission. Fails if it is not granted.
    pub(crate) fn without(mut self, permission: &Permission) -> Result<Self> {
        let mut found = false;
        for object in &mut self.objects {
            let mut kept = Vec::new();
            for rule in rules(object) {
                if !permission.is_in(rule) {
                    kept.push(rule.clone());
                    continue;
                }
                found = true;
                let but = |field: &str, text: &str| -> Vec<String> {
                    texts(&rule[field])
                        .into_iter()
                        .filter(|&found| found != text)
                        .map(str::to_owned)
                        .collect()
                };
                let (resources, verbs) =
                    (but("resources", &permission.resource), but("verbs", &permission.verb));
                for (resources, verbs) in
                    [(json!(resources), rule["verbs"].clone()), (json!([permission.resource]), json!(verbs))]
                {
                    if resources != json!([]) && verbs != json!([]) {
                        let mut rule = rule.clone();
                        (rule["resources"], rule["verbs"]) = (resources, verbs);
                        kept.push(rule);
                    }
                }
            }
            if object.data.get("rules").is_some() {
                object.data["rules"] = json!(kept);
            }
        }
        ensure!(found, "the roles do not grant {permission}");
        Ok(self)
    }

    /// Returns the name of the only object that a permission is for; empty if it is for all of
    /// them.
    fn name_of(&self, permission: &Permission) -> &str {
        let rule = self.objects.iter().flat_map(rules).find(|rule| permission.is_in(rule));
        rule.and_then(|rule| texts(&rule["resourceNames"]).first().copied()).unwrap_or_default()
    }

    /// Applies the objects to the cluster.
    pub(crate) async fn apply(&self, objects: &Objects) -> Result<()> {
        for object in &self.objects {
            objects.apply_object(object).await?;
        }
        Ok(())
    }

    /// Waits until the API server's authorizer allows this permission, or no longer does.
    pub(crate) async fn wait_for_access(
        &self,
        client: &Client,
        permission: &Permission,
        expected: bool,
    ) -> Result<()> {
        let (resource, subresource) =
            permission.resource.split_once('/').unwrap_or((&permission.resource, ""));
        let named = self.name_of(permission);
        let is_own = ["leases", "secrets"].contains(&resource);
        let review: SubjectAccessReview = serde_json::from_value(json!({"spec": {
            "user": format!("system:serviceaccount:{NAMESPACE}:{}", self.account),
            "resourceAttributes": {
                "group": permission.group,
                "resource": resource,
                "subresource": subresource,
                "verb": permission.verb,
                "namespace": if is_own { NAMESPACE } else { "" },
                "name": named,
            },
        }}))?;
        let reviews: Api<SubjectAccessReview> = Api::all(client.clone());
        eventually(&format!("permission for {permission}: {expected}"), BOUND, async || {
            let reviewed = reviews.create(&PostParams::default(), &review).await?;
            let is_allowed = reviewed.status.is_some_and(|status| status.allowed);
            ensure!(is_allowed == expected, "the API server says {is_allowed}");
            Ok(())
        })
        .await
    }
}

fn rules(object: &DynamicObject) -> &[Value] {
    object.data["rules"].as_array().map(Vec::as_slice).unwrap_or_default()
}

fn texts(list: &Value) -> Vec<&str> {
    list.as_array().into_iter().flatten().filter_map(Value::as_str).collect()
}
