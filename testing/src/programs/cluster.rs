//! A real control plane: etcd, kube-apiserver, and optionally kube-controller-manager and
//! kube-scheduler.

use std::fs;
use std::net::{Ipv4Addr, SocketAddr};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use k8s_openapi::api::authentication::v1::{TokenRequest, TokenRequestSpec};
use k8s_openapi::api::authorization::v1::SubjectAccessReview;
use k8s_openapi::api::core::v1::ServiceAccount;
use kube::api::PostParams;
use kube::config::{KubeConfigOptions, Kubeconfig};
use kube::{Api, Client, Config};
use serde_json::{Value, json};
use tempfile::TempDir;

use crate::http;
use crate::objects::{Namespace, Objects};
use crate::pki::{self, Certificate, FileAuthority};
use crate::process::{Process, free_port, remove_at_exit};
use crate::tools::{files_in, repository, tool};
use crate::wait::eventually;

/// Time limit for a part of the control plane to start. It takes seconds, but the machine may be
/// busy.
const START: Duration = Duration::from_secs(90);

/// Address of the Service `kubernetes`, which a pod's in-cluster configuration names.
pub const SERVICE_ADDRESS: Ipv4Addr = Ipv4Addr::new(10, 96, 0, 1);

/// Running control plane, with only the objects that Kubernetes itself creates.
#[derive(Debug)]
pub struct Cluster {
    // Before the folder that the processes write to, so that they are dropped first.
    scheduler: Option<Process>,
    controller_manager: Option<Process>,
    apiserver: Option<Process>,
    etcd: Option<Process>,
    etcd_port: u16,
    etcd_peer_port: u16,
    apiserver_port: u16,
    apiserver_flags: Vec<String>,
    has_pods: bool,
    authority: FileAuthority,
    server: Certificate,
    tokens: Certificate,
    admin: PathBuf,
    is_shared: bool,
    folder: TempDir,
}

impl Cluster {
    /// Starts a control plane of the test's own, which the test may break.
    pub async fn start() -> Result<Self> {
        Self::start_with(&[]).await
    }

    /// Starts a control plane with additional flags for the API server.
    pub async fn start_with(apiserver_flags: &[&str]) -> Result<Self> {
        Self::start_at(free_port()?, false, apiserver_flags).await
    }

    /// Starts a control plane for pods that a kubelet runs. Its API server listens on all addresses
    /// of this network namespace, so also on that of the Service `kubernetes`, and admits each pod
    /// with its ServiceAccount's token.
    pub async fn start_for_pods(apiserver_flags: &[&str]) -> Result<Self> {
        Self::start_at(443, true, apiserver_flags).await
    }

    async fn start_at(port: u16, has_pods: bool, apiserver_flags: &[&str]) -> Result<Self> {
        let folder = TempDir::with_prefix("multinet-cluster-")?;
        let pki = folder.path().join("pki");
        let authority = FileAuthority::new(&pki)?;
        let mut cluster = Self {
            scheduler: None,
            controller_manager: None,
            apiserver: None,
            etcd: None,
            etcd_port: free_port()?,
            etcd_peer_port: free_port()?,
            apiserver_port: port,
            apiserver_flags: apiserver_flags.iter().map(|&flag| flag.to_owned()).collect(),
            has_pods,
            server: authority.server_at("kubernetes.default.svc", SERVICE_ADDRESS)?,
            tokens: pki::key_pair(&pki, "service-accounts")?,
            admin: folder.path().join("admin.kubeconfig"),
            authority,
            is_shared: false,
            folder,
        };
        let user = cluster.authority.client("admin", "system:masters")?;
        let user = json!({"client-certificate": user.cert, "client-key": user.key});
        cluster.write_kubeconfig(&cluster.admin, cluster.address(), &user)?;
        cluster.start_etcd().await?;
        cluster.start_apiserver().await?;
        Ok(cluster)
    }

    /// Prepares the control plane for a static that tests share. A static is never dropped. So the
    /// folder is removed when the test binary ends, and a failed test shows the logs through its
    /// [`Namespace`].
    pub fn share(&mut self) -> Result<()> {
        self.is_shared = true;
        remove_at_exit(self.folder.path())
    }

    /// Returns the address of the API server.
    pub fn address(&self) -> SocketAddr {
        SocketAddr::from((Ipv4Addr::LOCALHOST, self.apiserver_port))
    }

    /// Returns a folder for files of this cluster.
    pub fn folder(&self) -> &Path {
        self.folder.path()
    }

    /// Returns the kubeconfig file of a user with all permissions.
    pub fn admin_kubeconfig(&self) -> &Path {
        &self.admin
    }

    /// Returns a client with all permissions. It belongs to the test's own async runtime, so that
    /// tests must not share it.
    pub async fn client(&self) -> Result<Client> {
        client_for(&self.admin).await
    }

    /// Returns access to all objects, with all permissions.
    pub async fn objects(&self) -> Result<Objects> {
        Ok(Objects::new(self.client().await?))
    }

    /// Creates a namespace whose name begins with `prefix`.
    pub async fn temp_namespace(&self, prefix: &str) -> Result<Namespace> {
        // A shared cluster is never dropped, so that a failed test shows the logs through its
        // namespace.
        let logs = if self.is_shared { vec![self.apiserver_log(), self.etcd_log()] } else { Vec::new() };
        Namespace::create(self.objects().await?, prefix, logs).await
    }

    /// Applies `deploy/crds`, and waits until the API server serves the new kinds.
    pub async fn apply_crds(&self) -> Result<()> {
        self.objects().await?.define(files_in("deploy/crds")?).await
    }

    /// Applies the shipped ServiceAccounts and roles.
    pub async fn apply_rbac(&self) -> Result<()> {
        let objects = self.objects().await?;
        for file in ["namespace.yaml", "dns-rbac.yaml", "controller-rbac.yaml"] {
            objects.apply_file(&repository().join("deploy/kustomize/base").join(file)).await?;
        }
        // The API server's authorizer notices the roles a moment later.
        self.wait_for_read_access("multinet-system", "multinet-dns", true).await
    }

    /// Waits until a ServiceAccount may read the objects that `multinet-dns` serves, or no longer
    /// may.
    pub async fn wait_for_read_access(&self, namespace: &str, account: &str, expected: bool) -> Result<()> {
        let reviews = Api::<SubjectAccessReview>::all(self.client().await?);
        let review: SubjectAccessReview = serde_json::from_value(json!({
            "apiVersion": "authorization.k8s.io/v1",
            "kind": "SubjectAccessReview",
            "metadata": {},
            "spec": {
                "user": format!("system:serviceaccount:{namespace}:{account}"),
                "resourceAttributes": {
                    "verb": "watch", "group": "multinetwork.numaproj.io", "resource": "multinetworkendpointslices",
                },
            },
        }))?;
        eventually("the API server to notice the permissions", START, async || {
            let review = reviews.create(&PostParams::default(), &review).await?;
            let is_allowed = review.status.is_some_and(|status| status.allowed);
            ensure!(is_allowed == expected, "{namespace}/{account} may read: {is_allowed}");
            Ok(())
        })
        .await
    }

    /// Writes a kubeconfig file with a token of a ServiceAccount. `server` is the API server's own
    /// [`address`](Self::address), or that of a proxy in front of it.
    pub async fn service_account_kubeconfig(
        &self,
        namespace: &str,
        name: &str,
        server: SocketAddr,
    ) -> Result<PathBuf> {
        let accounts = Api::<ServiceAccount>::namespaced(self.client().await?, namespace);
        let request = TokenRequest { spec: TokenRequestSpec::default(), ..TokenRequest::default() };
        let token = accounts
            .create_token_request(name, &PostParams::default(), &request)
            .await
            .with_context(|| format!("no token for the ServiceAccount {namespace}/{name}"))?
            .status
            .context("a TokenRequest without status")?
            .token;
        static COUNT: AtomicUsize = AtomicUsize::new(0);
        let count = COUNT.fetch_add(1, Ordering::Relaxed);
        let path = self.folder().join(format!("{namespace}-{name}-{count}.kubeconfig"));
        self.write_kubeconfig(&path, server, &json!({ "token": token }))?;
        Ok(path)
    }

    /// Writes a kubeconfig file for `multinet-dns` with the shipped ServiceAccount.
    pub async fn dns_server_kubeconfig(&self, server: SocketAddr) -> Result<PathBuf> {
        self.service_account_kubeconfig("multinet-system", "multinet-dns", server).await
    }

    /// Writes a kubeconfig file for `multinet-controller` with the shipped ServiceAccount.
    pub async fn controller_kubeconfig(&self, server: SocketAddr) -> Result<PathBuf> {
        self.service_account_kubeconfig("multinet-system", "multinet-controller", server).await
    }

    fn write_kubeconfig(&self, path: &Path, server: SocketAddr, user: &Value) -> Result<()> {
        let config = json!({
            "apiVersion": "v1",
            "kind": "Config",
            "clusters": [{
                "name": "test",
                "cluster": {"server": format!("https://{server}"), "certificate-authority": self.authority.ca()},
            }],
            "users": [{"name": "test", "user": user}],
            "contexts": [{"name": "test", "context": {"cluster": "test", "user": "test"}}],
            "current-context": "test",
        });
        fs::write(path, serde_json::to_vec_pretty(&config)?)
            .with_context(|| format!("cannot write {}", path.display()))
    }

    /// Sends SIGKILL to the API server.
    pub fn kill_apiserver(&mut self) -> Result<()> {
        self.apiserver.take().map_or(Ok(()), |mut process| process.kill())
    }

    /// Starts the API server, and waits until it is ready.
    pub async fn start_apiserver(&mut self) -> Result<()> {
        self.kill_apiserver()?;
        let mut command = Command::new(tool("kube-apiserver")?);
        command
            .arg(format!("--etcd-servers={}", self.etcd_url()))
            .arg(format!("--secure-port={}", self.apiserver_port))
            .args(self.audience())
            .arg(flag("--tls-cert-file", &self.server.cert))
            .arg(flag("--tls-private-key-file", &self.server.key))
            .arg(flag("--client-ca-file", &self.authority.ca()))
            .arg(flag("--cert-dir", &self.folder().join("apiserver")))
            .arg("--service-account-issuer=https://kubernetes.default.svc")
            .arg(flag("--service-account-key-file", &self.tokens.cert))
            .arg(flag("--service-account-signing-key-file", &self.tokens.key))
            .arg("--service-cluster-ip-range=10.96.0.0/16")
            .arg("--authorization-mode=RBAC")
            .arg("--endpoint-reconciler-type=none")
            .arg("--allow-privileged")
            .args(&self.apiserver_flags);
        let mut process = Process::spawn(&mut command, &self.apiserver_log())?;
        let client = self.client().await?;
        process
            .until("be ready", START, async || {
                let request = http::request("/readyz?verbose")?;
                Ok(client.request_text(request).await.map(drop)?)
            })
            .await?;
        self.apiserver = Some(process);
        Ok(())
    }

    /// Sets additional flags of the API server, from its next start on.
    pub fn set_apiserver_flags(&mut self, flags: &[&str]) {
        self.apiserver_flags = flags.iter().map(|&flag| flag.to_owned()).collect();
    }

    /// Returns the flags that depend on whether pods run in the cluster.
    fn audience(&self) -> &'static [&'static str] {
        if self.has_pods {
            &[
                "--bind-address=0.0.0.0",
                "--advertise-address=10.96.0.1", // without it, the server needs a default route
                "--kubelet-preferred-address-types=InternalIP",
            ]
        } else {
            // Without pods, no controller creates the ServiceAccounts and tokens that this plugin
            // requires.
            const WITHOUT: &str = "--disable-admission-plugins=ServiceAccount";
            &["--bind-address=127.0.0.1", "--advertise-address=127.0.0.1", WITHOUT]
        }
    }

    /// Starts kube-controller-manager with these controllers, separated by commas, and waits until
    /// they run.
    pub async fn start_controller_manager(&mut self, controllers: &str) -> Result<()> {
        self.start_controller_manager_with(controllers, &[]).await
    }

    /// Starts kube-controller-manager with these controllers and additional flags, and waits until
    /// they run.
    pub async fn start_controller_manager_with(&mut self, controllers: &str, flags: &[&str]) -> Result<()> {
        self.kill_controller_manager()?;
        let mut command = Command::new(tool("kube-controller-manager")?);
        command
            .args(self.component_flags())
            .arg(format!("--controllers={controllers}"))
            .arg("--use-service-account-credentials=false")
            .arg(flag("--root-ca-file", &self.authority.ca()))
            .arg(flag("--service-account-private-key-file", &self.tokens.key))
            .arg("--v=1") // logs the start of each controller
            .args(flags);
        let log = self.folder().join("kube-controller-manager.log");
        let mut process = Process::spawn(&mut command, &log)?;
        process.logged("\"Controller starting", START).await?;
        self.controller_manager = Some(process);
        Ok(())
    }

    /// Returns the process ID of the API server, if it runs.
    pub fn apiserver_pid(&self) -> Option<u32> {
        self.apiserver.as_ref().map(Process::pid)
    }

    /// Returns the process ID of kube-controller-manager, if it runs.
    pub fn controller_manager_pid(&self) -> Option<u32> {
        self.controller_manager.as_ref().map(Process::pid)
    }

    /// Sends SIGKILL to kube-controller-manager.
    pub fn kill_controller_manager(&mut self) -> Result<()> {
        self.controller_manager.take().map_or(Ok(()), |mut process| process.kill())
    }

    /// Starts kube-scheduler. It schedules pods a little later.
    pub fn start_scheduler(&mut self) -> Result<()> {
        let mut command = Command::new(tool("kube-scheduler")?);
        command.args(self.component_flags());
        let log = self.folder().join("kube-scheduler.log");
        self.scheduler = Some(Process::spawn(&mut command, &log)?);
        Ok(())
    }

    /// Returns the common flags of controller manager and scheduler: all permissions, and no
    /// listener.
    fn component_flags(&self) -> Vec<String> {
        let kubeconfigs = ["--kubeconfig", "--authentication-kubeconfig", "--authorization-kubeconfig"];
        let kubeconfigs = kubeconfigs.iter().map(|name| flag(name, &self.admin));
        kubeconfigs.chain(["--leader-elect=false", "--secure-port=0"].map(ToOwned::to_owned)).collect()
    }

    /// Sends SIGKILL to etcd.
    pub fn kill_etcd(&mut self) -> Result<()> {
        self.etcd.take().map_or(Ok(()), |mut process| process.kill())
    }

    /// Starts etcd, and waits until it is healthy.
    pub async fn start_etcd(&mut self) -> Result<()> {
        self.kill_etcd()?;
        let (client, peer) = (self.etcd_url(), format!("http://127.0.0.1:{}", self.etcd_peer_port));
        let mut command = Command::new(tool("etcd")?);
        command
            .arg("--data-dir")
            .arg(self.folder().join("etcd"))
            .args(["--listen-client-urls", &client, "--advertise-client-urls", &client])
            .args(["--listen-peer-urls", &peer, "--initial-advertise-peer-urls", &peer])
            .args(["--initial-cluster", &format!("default={peer}")])
            .args(["--unsafe-no-fsync", "--log-level", "warn"]);
        let mut process = Process::spawn(&mut command, &self.etcd_log())?;
        let health = format!("{client}/health");
        process.until("be healthy", START, async || http::get(&health).await.map(drop)).await?;
        self.etcd = Some(process);
        Ok(())
    }

    /// Makes etcd drop all revisions but the current one. A watch from an older one then ends in
    /// 410 Gone, once the API server has lost its own cache, too.
    pub async fn compact_etcd(&self) -> Result<()> {
        let url = self.etcd_url();
        // A range of a key that does not exist. The answer's header has the current revision.
        let found = http::post(&format!("{url}/v3/kv/range"), &json!({"key": "AA=="})).await?;
        let revision = found.pointer("/header/revision").context("etcd's answer has no revision")?;
        let compaction = json!({"revision": revision, "physical": true});
        http::post(&format!("{url}/v3/kv/compaction"), &compaction).await?;
        Ok(())
    }

    fn apiserver_log(&self) -> PathBuf {
        self.folder().join("kube-apiserver.log")
    }

    fn etcd_log(&self) -> PathBuf {
        self.folder().join("etcd.log")
    }

    fn etcd_url(&self) -> String {
        format!("http://127.0.0.1:{}", self.etcd_port)
    }
}

/// Returns a client for the cluster and user of a kubeconfig file.
pub async fn client_for(kubeconfig: &Path) -> Result<Client> {
    let kubeconfig = Kubeconfig::read_from(kubeconfig)?;
    let config = Config::from_custom_kubeconfig(kubeconfig, &KubeConfigOptions::default()).await?;
    Ok(Client::try_from(config)?)
}

fn flag(name: &str, path: &Path) -> String {
    format!("{name}={}", path.display())
}
