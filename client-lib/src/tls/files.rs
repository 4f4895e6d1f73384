//! Certificate, key and trust anchors, read from files and read anew when these change.
//!
//! Whoever begins a handshake looks at the files, at most one a second, and waits for what it finds, though
//! not for long: a hanging file system holds up no handshakes. What identifies a file's content is its inode,
//! length and times behind all symbolic links, so the swap of a folder far above is seen as well. Until a set
//! of files that fit together is found the one before it stays, and what is wrong is logged once.

use std::fmt;
use std::fs;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use multinet_pem::CertifiedKeyError;
use rustls::RootCertStore;
use rustls::crypto::{CryptoProvider, ring};
use rustls::pki_types::{CertificateDer, UnixTime};
use rustls::server::WebPkiClientVerifier;
use rustls::server::danger::ClientCertVerifier;
use rustls::sign::{CertifiedKey, SingleCertAndKey};
use tokio::task::{AbortHandle, spawn_blocking};
use tracing::{info, warn};

use super::TlsError;

/// Time between two looks at the files.
const INTERVAL: Duration = Duration::from_secs(1);

/// So long a handshake waits for a look.
const PATIENCE: Duration = Duration::from_millis(500);

/// Where the files lie.
#[derive(Debug, Clone)]
pub(super) struct Files {
    pub(super) certificate: PathBuf,
    pub(super) key: PathBuf,
    pub(super) trust: PathBuf,
}

/// What the files say.
pub(super) struct Credentials {
    /// Our chain and key.
    pub(super) identity: Arc<SingleCertAndKey>,
    chain: Vec<CertificateDer<'static>>,
    /// The trust anchors.
    pub(super) roots: Arc<RootCertStore>,
    /// Verifies peers that connect, but for their names.
    pub(super) client_verifier: Arc<dyn ClientCertVerifier>,
    /// The cryptography.
    pub(super) provider: Arc<CryptoProvider>,
}

impl fmt::Debug for Credentials {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // Not the key, in no log.
        f.debug_struct("Credentials").finish_non_exhaustive()
    }
}

/// The files, followed.
#[derive(Debug)]
pub(super) struct CredentialStore {
    files: Files,
    interval: Duration,
    patience: Duration,
    state: Mutex<State>,
}

#[derive(Debug)]
struct State {
    credentials: Arc<Credentials>,
    /// Of the files that `material` was made of.
    stamps: [Option<Stamp>; 3],
    /// When the last look began.
    last_check: Instant,
    /// The last look, which may still hang.
    reload: Option<AbortHandle>,
    /// What was last logged, if the files have become bad.
    last_error: Option<TlsError>,
}

impl CredentialStore {
    pub(super) fn open(files: Files) -> Result<Self, TlsError> {
        Self::every(INTERVAL, PATIENCE, files)
    }

    pub(super) fn every(interval: Duration, patience: Duration, files: Files) -> Result<Self, TlsError> {
        // The stamps before the content: what changes in between is seen by the next look.
        let stamps = files.stamps();
        let credentials = Arc::new(files.load()?);
        let state = State { credentials, stamps, last_check: Instant::now(), reload: None, last_error: None };
        Ok(Self { files, interval, patience, state: Mutex::new(state) })
    }

    /// The file of the trust anchors, for messages.
    pub(super) fn trust(&self) -> &Path {
        &self.files.trust
    }

    /// What the files say now, or said when they were last good.
    pub(super) async fn current(self: &Arc<Self>) -> Arc<Credentials> {
        let reload = {
            let mut state = self.state();
            let is_reloading = state.reload.as_ref().is_some_and(|reload| !reload.is_finished());
            if is_reloading || state.last_check.elapsed() < self.interval {
                return Arc::clone(&state.credentials);
            }
            let store = Arc::clone(self);
            let reload = spawn_blocking(move || store.reload());
            state.last_check = Instant::now();
            state.reload = Some(reload.abort_handle());
            reload
        };
        // Late or failed, there is something to go on with.
        let _ = tokio::time::timeout(self.patience, reload).await;
        Arc::clone(&self.state().credentials)
    }

    /// Takes the files if they have changed and are good.
    fn reload(&self) {
        let stamps = self.files.stamps();
        {
            let state = self.state();
            // While they are bad they are read each time: it may have been the reading that failed.
            if state.last_error.is_none() && state.stamps == stamps {
                return;
            }
        }
        let loaded = self.files.load();
        let mut state = self.state();
        match loaded.and_then(|credentials| self.files.check_replacement(&state.credentials, credentials)) {
            Ok(credentials) => {
                state.credentials = Arc::new(credentials);
                state.stamps = stamps;
                state.last_error = None;
                info!(certificate = %self.files.certificate.display(), "certificates renewed");
            }
            Err(error) if state.last_error.as_ref() == Some(&error) => {}
            Err(error) => {
                warn!(%error, "the certificates in use are kept");
                state.last_error = Some(error);
            }
        }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        // What is held is whole at every moment.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// What tells one content of a file from another without reading it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Stamp {
    device: u64,
    inode: u64,
    length: u64,
    modified: (i64, i64),
    /// Tools that copy a file may set its modification time back, not this one.
    changed: (i64, i64),
}

impl Stamp {
    fn of(file: &Path) -> Option<Self> {
        let metadata = fs::metadata(file).ok()?;
        Some(Self {
            device: metadata.dev(),
            inode: metadata.ino(),
            length: metadata.size(),
            modified: (metadata.mtime(), metadata.mtime_nsec()),
            changed: (metadata.ctime(), metadata.ctime_nsec()),
        })
    }
}

impl Files {
    fn stamps(&self) -> [Option<Stamp>; 3] {
        [&self.certificate, &self.key, &self.trust].map(|file| Stamp::of(file))
    }

    fn load(&self) -> Result<Credentials, TlsError> {
        let provider = Arc::new(ring::default_provider());
        let identity = self.identity(&provider)?;
        let roots = Arc::new(self.roots()?);
        // Our peers have one certificate to show: to tell them all our anchors would only be long.
        let client_verifier =
            WebPkiClientVerifier::builder_with_provider(Arc::clone(&roots), Arc::clone(&provider))
                .clear_root_hint_subjects()
                .build()
                .map_err(|_| file_error(&self.trust, &TrustError::NoAnchor))?;
        let chain = identity.cert.clone();
        Ok(Credentials { identity: Arc::new(identity.into()), chain, roots, client_verifier, provider })
    }

    /// The new material, unless its chain is outdated while that of the old one is not.
    fn check_replacement(&self, old: &Credentials, new: Credentials) -> Result<Credentials, TlsError> {
        match multinet_pem::replacement_problem(&old.chain, &new.chain, UnixTime::now()) {
            Some(problem) => Err(file_error(&self.certificate, &problem)),
            None => Ok(new),
        }
    }

    fn identity(&self, provider: &CryptoProvider) -> Result<CertifiedKey, TlsError> {
        let (certificate, key) = (read(&self.certificate)?, read(&self.key)?);
        multinet_pem::certified_key(provider, (&self.certificate, &certificate), &key).map_err(|unusable| {
            match unusable {
                CertifiedKeyError::Certificate(problem) => file_error(&self.certificate, &problem),
                CertifiedKeyError::Key(problem) => file_error(&self.key, &problem),
            }
        })
    }

    fn roots(&self) -> Result<RootCertStore, TlsError> {
        let certificates = multinet_pem::certificates(&read(&self.trust)?);
        let mut roots = RootCertStore::empty();
        for (index, certificate) in
            certificates.map_err(|problem| file_error(&self.trust, &problem))?.into_iter().enumerate()
        {
            roots
                .add(certificate)
                .map_err(|error| file_error(&self.trust, &TrustError::Anchor { number: index + 1, error }))?;
        }
        if roots.is_empty() {
            return Err(file_error(&self.trust, &TrustError::NoAnchor));
        }
        Ok(roots)
    }
}

fn read(file: &Path) -> Result<Vec<u8>, TlsError> {
    multinet_pem::read(file).map_err(|problem| file_error(file, &problem))
}

fn file_error(file: &Path, problem: &dyn fmt::Display) -> TlsError {
    TlsError::File { file: file.to_owned(), problem: problem.to_string() }
}

/// What can be wrong with the file of trust anchors beyond its PEM.
#[derive(Debug, thiserror::Error)]
enum TrustError {
    #[error("has no certificate in PEM; give the file with the certificates of the authorities to trust")]
    NoAnchor,
    #[error("certificate {number} in it is not sound: {error}; remove or replace it")]
    Anchor { number: usize, error: rustls::Error },
}

#[cfg(test)]
mod tests {
    use futures::FutureExt as _;

    use super::super::tests::authority::{Authority, Folder, Mounted as _};
    use super::*;

    /// Longer than a busy machine may keep a thread waiting.
    const LONG: Duration = Duration::from_secs(60);

    fn store(folder: &Folder) -> Arc<CredentialStore> {
        Arc::new(CredentialStore::every(Duration::ZERO, LONG, folder.files()).unwrap())
    }

    /// The own certificate in use.
    fn in_use(credentials: &Credentials) -> CertificateDer<'static> {
        use rustls::client::ResolvesClientCert as _;
        credentials.identity.resolve(&[], &[]).unwrap().cert[0].clone()
    }

    #[test]
    fn an_error_is_one_line_that_names_the_file_and_the_remedy() {
        let authority = Authority::new();
        let good = authority.issue(&["a.test"]);
        let other = authority.issue(&["a.test"]);
        let anchor = authority.pem();
        let broken = |text: &str| text.replace("-----END", "!----END");
        let encrypted = "-----BEGIN ENCRYPTED PRIVATE KEY-----\nAAAA\n-----END ENCRYPTED PRIVATE KEY-----\n";
        let nonsense = "-----BEGIN PRIVATE KEY-----\nAAAA\n-----END PRIVATE KEY-----\n";
        let no_x509 = "-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n";
        for (certificate, key, trust, file, says) in [
            (&good.key, &good.key, &anchor, "tls.crt", "no certificate in PEM"),
            (&String::new(), &good.key, &anchor, "tls.crt", "no certificate in PEM"),
            (&broken(&good.chain), &good.key, &anchor, "tls.crt", "not valid PEM"),
            (&no_x509.to_owned(), &good.key, &anchor, "tls.crt", "not a valid X.509 certificate"),
            (&good.chain, &good.chain, &anchor, "tls.key", "no private key in PEM"),
            (&good.chain, &broken(&good.key), &anchor, "tls.key", "not valid PEM"),
            (&good.chain, &encrypted.to_owned(), &anchor, "tls.key", "openssl pkey"),
            (&good.chain, &nonsense.to_owned(), &anchor, "tls.key", "unsupported kind"),
            (&good.chain, &other.key, &anchor, "tls.key", "is not the key of the certificate in"),
            (&good.chain, &good.key, &good.key, "ca.crt", "authorities to trust"),
            (&good.chain, &good.key, &String::new(), "ca.crt", "authorities to trust"),
            (&good.chain, &good.key, &broken(&anchor), "ca.crt", "not valid PEM"),
            (&good.chain, &good.key, &format!("{anchor}{no_x509}"), "ca.crt", "certificate 2 in it"),
        ] {
            let folder = Folder::new();
            folder.write(certificate, key, trust);
            let error = CredentialStore::open(folder.files()).unwrap_err().to_string();
            let path = folder.path().join(file);
            assert!(error.starts_with(&format!("{}: ", path.display())) && error.contains(says), "{error}");
            assert!(!error.contains('\n'), "{error}");
        }
        for file in ["tls.crt", "tls.key", "ca.crt"] {
            let folder = Folder::of(&good, &anchor);
            fs::remove_file(folder.path().join(file)).unwrap();
            let error = CredentialStore::open(folder.files()).unwrap_err().to_string();
            assert!(error.contains(file) && error.contains("No such file"), "{error}");
        }
    }

    #[tokio::test]
    async fn files_are_looked_at_once_a_second() {
        let authority = Authority::new();
        let folder = Folder::of(&authority.issue(&["a.test"]), &authority.pem());
        let store = Arc::new(CredentialStore::every(INTERVAL, LONG, folder.files()).unwrap());
        let patient = Arc::new(CredentialStore::every(LONG, LONG, folder.files()).unwrap());
        let (first, other) = (store.current().await, patient.current().await);
        folder.put(&authority.issue(&["b.test"]), &authority.pem());
        tokio::time::sleep(INTERVAL).await;
        assert!(!Arc::ptr_eq(&first, &store.current().await));
        assert!(Arc::ptr_eq(&other, &patient.current().await), "too early to look");
    }

    #[tokio::test]
    async fn unchanged_files_are_not_read_again() {
        let authority = Authority::new();
        let folder = Folder::of(&authority.issue(&["a.test"]), &authority.pem());
        let store = store(&folder);
        let first = store.current().await;
        assert!(Arc::ptr_eq(&first, &store.current().await));
    }

    #[tokio::test]
    async fn new_files_are_taken_and_broken_ones_are_not() {
        let authority = Authority::new();
        let (first, second) = (authority.issue(&["a.test"]), authority.issue(&["a.test"]));
        let folder = Folder::of(&first, &authority.pem());
        let store = store(&folder);
        assert_eq!(in_use(&*store.current().await), first.der());
        folder.put(&second, &authority.pem());
        assert_eq!(in_use(&*store.current().await), second.der());

        // The certificate of one pair with the key of another, then half a file, then nothing at all.
        let third = authority.issue(&["a.test"]);
        fs::write(folder.path().join("tls.crt"), &third.chain).unwrap();
        assert_eq!(in_use(&*store.current().await), second.der());
        fs::write(folder.path().join("ca.crt"), &authority.pem()[..100]).unwrap();
        assert_eq!(in_use(&*store.current().await), second.der());
        let last_error = store.state().last_error.clone();
        assert!(last_error.is_some());
        assert_eq!(in_use(&*store.current().await), second.der());
        assert_eq!(store.state().last_error, last_error);
        fs::remove_file(folder.path().join("tls.key")).unwrap();
        assert_eq!(in_use(&*store.current().await), second.der());
        folder.put(&third, &authority.pem());
        assert_eq!(in_use(&*store.current().await), third.der());
        assert_eq!(store.state().last_error, None);
    }

    #[tokio::test]
    async fn a_swapped_link_is_a_change() {
        let authority = Authority::new();
        let (first, second) = (authority.issue(&["a.test"]), authority.issue(&["a.test"]));
        let (old, new) = (Folder::of(&first, &authority.pem()), Folder::of(&second, &authority.pem()));
        let mount = Folder::new();
        let data = mount.path().join("..data");
        std::os::unix::fs::symlink(old.path(), &data).unwrap();
        for name in ["tls.crt", "tls.key", "ca.crt"] {
            std::os::unix::fs::symlink(format!("..data/{name}"), mount.path().join(name)).unwrap();
        }
        let store = store(&mount);
        let next = mount.path().join("..next");
        std::os::unix::fs::symlink(new.path(), &next).unwrap();
        fs::rename(&next, &data).unwrap();
        assert_eq!(in_use(&*store.current().await), second.der());
    }

    /// A look waits for a thread here, as it would for a file system.
    #[test]
    fn a_look_that_hangs_holds_up_nobody_for_long() {
        let authority = Authority::new();
        let (first, second) = (authority.issue(&["a.test"]), authority.issue(&["a.test"]));
        let folder = Folder::of(&first, &authority.pem());
        let store = Arc::new(CredentialStore::every(Duration::ZERO, PATIENCE, folder.files()).unwrap());
        let mut runtime = tokio::runtime::Builder::new_current_thread();
        runtime.enable_all().max_blocking_threads(1).build().unwrap().block_on(async {
            let (go_on, wait) = std::sync::mpsc::channel::<()>();
            let hanging = spawn_blocking(move || wait.recv().is_err());
            folder.put(&second, &authority.pem());
            let begun = Instant::now();
            assert_eq!(in_use(&*store.current().await), first.der());
            assert!(begun.elapsed() >= PATIENCE);
            // The look that hangs is not joined by others.
            assert_eq!(in_use(&store.current().now_or_never().unwrap()), first.der());
            drop(go_on);
            assert!(hanging.await.unwrap());
            while !store.state().reload.as_ref().unwrap().is_finished() {
                tokio::task::yield_now().await;
            }
            assert_eq!(in_use(&store.state().credentials), second.der());
        });
    }

    #[tokio::test]
    async fn a_valid_certificate_gives_way_only_to_one_that_is() {
        let authority = Authority::new();
        let (good, next) = (authority.issue(&["a.test"]), authority.issue(&["a.test"]));
        let expired = authority.issue_as(&["a.test"], |params| {
            params.not_before = rcgen::date_time_ymd(2024, 1, 1);
            params.not_after = rcgen::date_time_ymd(2025, 1, 1);
        });
        let folder = Folder::of(&good, &authority.pem());
        let store = store(&folder);
        folder.put(&expired, &authority.pem());
        assert_eq!(in_use(&*store.current().await), good.der());
        assert!(store.state().last_error.as_ref().unwrap().to_string().contains("expired"));
        folder.put(&next, &authority.pem());
        assert_eq!(in_use(&*store.current().await), next.der());
    }

    #[test]
    fn a_debug_print_has_no_key() {
        let authority = Authority::new();
        let store = store(&Folder::of(&authority.issue(&["a.test"]), &authority.pem()));
        let print = format!("{store:?}");
        assert!(print.contains("tls.key") && print.contains("Credentials { .. }"), "{print}");
    }
}
