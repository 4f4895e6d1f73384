//! Certificate, key and trust anchors, loaded from files and reloaded when these change.
//!
//! Each handshake first checks the files, but at most once a second, and waits shortly for the
//! result. So a hanging file system does not hold up handshakes. New content replaces the old only
//! if the three files fit together. Otherwise the problem is logged once.

use std::fmt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

use multinet_pem::CertifiedKeyError;
use parking_lot::Mutex;
use rustls::RootCertStore;
use rustls::crypto::{CryptoProvider, ring};
use rustls::pki_types::{CertificateDer, UnixTime};
use rustls::server::WebPkiClientVerifier;
use rustls::server::danger::ClientCertVerifier;
use rustls::sign::{CertifiedKey, SingleCertAndKey};
use tokio::task::{AbortHandle, spawn_blocking};
use tracing::{info, warn};

use super::TlsError;

/// Minimum time between two checks whether the certificate files have changed.
const INTERVAL: Duration = Duration::from_secs(1);

/// Maximum time that a TLS handshake waits for a check of the certificate files.
const PATIENCE: Duration = Duration::from_millis(500);

/// Paths of the PEM files that configure TLS.
#[derive(Debug, Clone)]
pub(super) struct Files {
    pub(super) certificate: PathBuf,
    pub(super) key: PathBuf,
    pub(super) trust: PathBuf,
}

/// Bytes of the TLS files: certificate, key and trust anchors.
type Contents = [Vec<u8>; 3];

/// Parsed content of the TLS files.
pub(super) struct Credentials {
    contents: Contents,
    /// Certificate chain and private key of this side.
    pub(super) identity: Arc<SingleCertAndKey>,
    chain: Vec<CertificateDer<'static>>,
    pub(super) roots: Arc<RootCertStore>,
    /// Verifier of the certificates of peers that connect. It does not check their names.
    pub(super) client_verifier: Arc<dyn ClientCertVerifier>,
    pub(super) provider: Arc<CryptoProvider>,
}

impl fmt::Debug for Credentials {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // The key must not get into a log.
        f.debug_struct("Credentials").finish_non_exhaustive()
    }
}

/// Current content of the TLS files, reloaded when they change.
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
    /// Time when the last check of the files began.
    last_check: Instant,
    /// Task of the last check of the files, which may still hang. `None` before the first.
    reload: Option<AbortHandle>,
    /// Error of the files that was logged last. `None` while the files are usable.
    last_error: Option<TlsError>,
}

impl CredentialStore {
    pub(super) fn open(files: Files) -> Result<Self, TlsError> {
        Self::every(INTERVAL, PATIENCE, files)
    }

    pub(super) fn every(interval: Duration, patience: Duration, files: Files) -> Result<Self, TlsError> {
        let credentials = Arc::new(files.load(files.read()?)?);
        let state = State { credentials, last_check: Instant::now(), reload: None, last_error: None };
        Ok(Self { files, interval, patience, state: Mutex::new(state) })
    }

    /// Returns the path of the trust anchors' file, for messages.
    pub(super) fn trust(&self) -> &Path {
        &self.files.trust
    }

    /// Returns the content of the files, or if they are unusable, what they contained before.
    pub(super) async fn current(self: &Arc<Self>) -> Arc<Credentials> {
        let reload = {
            let mut state = self.state.lock();
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
        // If it is late or fails, the old content will do.
        let _ = tokio::time::timeout(self.patience, reload).await;
        Arc::clone(&self.state.lock().credentials)
    }

    /// Reloads the TLS files if they have changed, and keeps the old content if they are unusable.
    fn reload(&self) {
        let read = self.files.read();
        {
            let state = self.state.lock();
            // After an error, a return to the old content is news.
            if state.last_error.is_none()
                && read.as_ref().is_ok_and(|contents| *contents == state.credentials.contents)
            {
                return;
            }
        }
        let loaded = read.and_then(|contents| self.files.load(contents));
        let mut state = self.state.lock();
        match loaded.and_then(|credentials| self.files.check_replacement(&state.credentials, credentials)) {
            Ok(credentials) => {
                state.credentials = Arc::new(credentials);
                state.last_error = None;
                info!(certificate = %self.files.certificate.display(), "reloaded the certificates; new connections use them");
            }
            Err(error) if state.last_error.as_ref() == Some(&error) => {}
            Err(error) => {
                warn!(%error, "cannot reload the certificates; those in use are kept");
                state.last_error = Some(error);
            }
        }
    }
}

impl Files {
    fn read(&self) -> Result<Contents, TlsError> {
        Ok([read(&self.certificate)?, read(&self.key)?, read(&self.trust)?])
    }

    fn load(&self, contents: Contents) -> Result<Credentials, TlsError> {
        let [certificate, key, trust] = &contents;
        let provider = Arc::new(ring::default_provider());
        let identity = self.identity(&provider, certificate, key)?;
        let roots = Arc::new(self.roots(trust)?);
        // Peers have a single certificate. A list of all our anchors would only make the handshake
        // long.
        let client_verifier =
            WebPkiClientVerifier::builder_with_provider(Arc::clone(&roots), Arc::clone(&provider))
                .clear_root_hint_subjects()
                .build()
                .map_err(|_| file_error(&self.trust, &TrustError::NoAnchor))?;
        let chain = identity.cert.clone();
        let identity = Arc::new(identity.into());
        Ok(Credentials { contents, identity, chain, roots, client_verifier, provider })
    }

    /// Returns the new credentials, unless their chain is outdated while the old one is not.
    fn check_replacement(&self, old: &Credentials, new: Credentials) -> Result<Credentials, TlsError> {
        match multinet_pem::replacement_problem(&old.chain, &new.chain, UnixTime::now()) {
            Some(problem) => Err(file_error(&self.certificate, &problem)),
            None => Ok(new),
        }
    }

    fn identity(
        &self,
        provider: &CryptoProvider,
        certificate: &[u8],
        key: &[u8],
    ) -> Result<CertifiedKey, TlsError> {
        multinet_pem::certified_key(provider, (&self.certificate, certificate), key).map_err(|unusable| {
            match unusable {
                CertifiedKeyError::Certificate(problem) => file_error(&self.certificate, &problem),
                CertifiedKeyError::Key(problem) => file_error(&self.key, &problem),
            }
        })
    }

    fn roots(&self, trust: &[u8]) -> Result<RootCertStore, TlsError> {
        let certificates = multinet_pem::certificates(trust);
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

/// Problem of the trust anchors' file other than malformed PEM.
#[derive(Debug, thiserror::Error)]
enum TrustError {
    #[error("has no certificate in PEM; give the file with the certificates of the authorities to trust")]
    NoAnchor,
    #[error("certificate {number} in it is invalid: {error}; remove or replace it")]
    Anchor { number: usize, error: rustls::Error },
}

#[cfg(test)]
mod tests {
    use std::fs;

    use futures::FutureExt as _;

    use super::super::tests::authority::{Authority, Folder, Mounted as _};
    use super::*;

    /// Longer than a busy machine may delay a thread.
    const LONG: Duration = Duration::from_secs(60);

    fn store(folder: &Folder) -> Arc<CredentialStore> {
        Arc::new(CredentialStore::every(Duration::ZERO, LONG, folder.files()).unwrap())
    }

    /// Returns this side's certificate in use.
    fn in_use(credentials: &Credentials) -> CertificateDer<'static> {
        use rustls::client::ResolvesClientCert as _;
        credentials.identity.resolve(&[], &[]).unwrap().cert[0].clone()
    }

    #[test]
    fn an_unusable_file_is_an_error_of_one_line_with_the_file_and_the_remedy() {
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
    async fn changed_files_are_noticed_after_a_second_and_not_earlier() {
        let authority = Authority::new();
        let folder = Folder::of(&authority.issue(&["a.test"]), &authority.pem());
        let store = Arc::new(CredentialStore::every(INTERVAL, LONG, folder.files()).unwrap());
        let patient = Arc::new(CredentialStore::every(LONG, LONG, folder.files()).unwrap());
        let (first, other) = (store.current().await, patient.current().await);
        folder.put(&authority.issue(&["b.test"]), &authority.pem());
        tokio::time::sleep(INTERVAL).await;
        assert!(!Arc::ptr_eq(&first, &store.current().await));
        assert!(Arc::ptr_eq(&other, &patient.current().await), "too early to check");
    }

    #[tokio::test]
    async fn unchanged_files_are_not_loaded_again() {
        let authority = Authority::new();
        let folder = Folder::of(&authority.issue(&["a.test"]), &authority.pem());
        let store = store(&folder);
        let first = store.current().await;
        assert!(Arc::ptr_eq(&first, &store.current().await));
    }

    #[tokio::test]
    async fn new_files_are_used_if_they_fit_together_and_ignored_if_not() {
        let authority = Authority::new();
        let (first, second) = (authority.issue(&["a.test"]), authority.issue(&["a.test"]));
        let folder = Folder::of(&first, &authority.pem());
        let store = store(&folder);
        assert_eq!(in_use(&*store.current().await), first.der());
        folder.put(&second, &authority.pem());
        assert_eq!(in_use(&*store.current().await), second.der());

        // First the certificate of one pair with the key of another, then half a file, then no
        // file.
        let third = authority.issue(&["a.test"]);
        fs::write(folder.path().join("tls.crt"), &third.chain).unwrap();
        assert_eq!(in_use(&*store.current().await), second.der());
        fs::write(folder.path().join("ca.crt"), &authority.pem()[..100]).unwrap();
        assert_eq!(in_use(&*store.current().await), second.der());
        let last_error = store.state.lock().last_error.clone();
        assert!(last_error.is_some());
        assert_eq!(in_use(&*store.current().await), second.der());
        assert_eq!(store.state.lock().last_error, last_error);
        fs::remove_file(folder.path().join("tls.key")).unwrap();
        assert_eq!(in_use(&*store.current().await), second.der());
        folder.put(&third, &authority.pem());
        assert_eq!(in_use(&*store.current().await), third.der());
        assert_eq!(store.state.lock().last_error, None);
    }

    #[tokio::test]
    async fn a_swapped_symbolic_link_is_noticed() {
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

    /// The check waits for a thread here, as it would for a file system.
    #[test]
    fn a_check_that_hangs_does_not_hold_up_handshakes() {
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
            // Further handshakes do not wait for the check that hangs.
            assert_eq!(in_use(&store.current().now_or_never().unwrap()), first.der());
            drop(go_on);
            assert!(hanging.await.unwrap());
            while !store.state.lock().reload.as_ref().unwrap().is_finished() {
                tokio::task::yield_now().await;
            }
            assert_eq!(in_use(&store.state.lock().credentials), second.der());
        });
    }

    #[tokio::test]
    async fn an_expired_certificate_does_not_replace_a_valid_one() {
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
        assert!(store.state.lock().last_error.as_ref().unwrap().to_string().contains("expired"));
        folder.put(&next, &authority.pem());
        assert_eq!(in_use(&*store.current().await), next.der());
    }

    #[test]
    fn debug_output_has_no_key() {
        let authority = Authority::new();
        let store = store(&Folder::of(&authority.issue(&["a.test"]), &authority.pem()));
        let print = format!("{store:?}");
        assert!(print.contains("tls.key") && print.contains("Credentials { .. }"), "{print}");
    }
}
