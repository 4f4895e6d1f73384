//! Certificate of the encrypted listeners. It is reloaded when its files change.
//!
//! The two files are read every few seconds and compared by content. A kubelet renews a mounted
//! secret by swapping a symbolic link far above the files, which a watch on the files would not
//! see. A new pair is installed when two reads in a row have found it, so that a certificate is not
//! tried with the key of its predecessor, nor half of a file. On SIGHUP the files are installed at
//! once. A pair that cannot be used is logged once, and the old pair stays in use. The same holds
//! for an outdated pair while the old one is valid. Handshakes read the current certificate without
//! a lock; open connections keep theirs.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use arc_swap::ArcSwap;
use multinet_pem::{CertifiedKeyError, FileProblem};
use multinet_runtime::Hangups;
use rustls::ServerConfig;
use rustls::crypto::ring;
use rustls::pki_types::UnixTime;
use rustls::server::{ClientHello, ResolvesServerCert};
use rustls::sign::CertifiedKey;
use tokio_util::sync::CancellationToken;
use tracing::{info, warn};

use crate::limits::tcp::CERTIFICATE_INTERVAL;

/// The server's certificate chain and key, which all encrypted listeners share.
#[derive(Debug, Clone)]
pub struct Certificates {
    files: CertificateFiles,
    /// Contents of the files from which the first certificate was loaded.
    loaded: Contents,
    current: Arc<CurrentCertificate>,
}

impl Certificates {
    /// Reads a certificate chain and its key, both in PEM.
    ///
    /// # Errors
    ///
    /// If a file cannot be read or used. The message names the file, the problem and the remedy.
    pub fn load(cert: impl Into<PathBuf>, key: impl Into<PathBuf>) -> Result<Self, CertificateError> {
        let files = CertificateFiles { cert: cert.into(), key: key.into() };
        let loaded = files.read()?;
        let certified = files.parse(&loaded)?;
        if let Some(problem) = multinet_pem::validity_problem(&certified.cert, UnixTime::now()) {
            let error = CertificateError::new(CERT, &files.cert, problem);
            warn!(%error, "the certificate is not valid now; clients will refuse it");
        }
        let current = Arc::new(CurrentCertificate(ArcSwap::new(certified)));
        Ok(Self { files, loaded, current })
    }

    /// Returns a TLS configuration for versions 1.2 and 1.3 with the current certificate. It offers
    /// the protocols of `alpn`, and also accepts clients without ALPN.
    pub fn server_config(&self, alpn: &[&[u8]]) -> Arc<ServerConfig> {
        #[expect(clippy::expect_used, reason = "fails only if a provider has no suite for a version")]
        let builder = ServerConfig::builder_with_provider(Arc::new(ring::default_provider()))
            .with_safe_default_protocol_versions()
            .expect("ring has suites for TLS 1.2 and 1.3");
        let mut config = builder.with_no_client_auth().with_cert_resolver(Arc::clone(&self.current) as _);
        config.alpn_protocols = alpn.iter().map(|protocol| protocol.to_vec()).collect();
        Arc::new(config)
    }

    /// Follows the files until `shutdown`. Configurations made earlier from `self` use the new
    /// certificate.
    pub async fn follow(self, shutdown: CancellationToken) {
        let mut follower = Follower {
            last_read: Ok(self.loaded.clone()),
            handled: Ok(self.loaded),
            is_outdated: false,
            files: self.files,
            current: self.current,
        };
        let mut hangups = Hangups::subscribe();
        let mut ticks = tokio::time::interval(CERTIFICATE_INTERVAL);
        ticks.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
        loop {
            let at_once = tokio::select! {
                () = shutdown.cancelled() => return,
                _ = ticks.tick() => false,
                () = hangups.next() => true,
            };
            // Reading may block, on a network file system even forever.
            let checking = tokio::task::spawn_blocking(move || {
                follower.check(at_once);
                follower
            });
            match shutdown.run_until_cancelled(checking).await {
                Some(Ok(back)) => follower = back,
                Some(Err(error)) => return warn!(%error, "the certificate files are no longer followed"),
                None => return,
            }
        }
    }
}

/// The certificate that handshakes present now. A [`Follower`] replaces it.
#[derive(Debug)]
struct CurrentCertificate(ArcSwap<CertifiedKey>);

impl ResolvesServerCert for CurrentCertificate {
    fn resolve(&self, _client_hello: ClientHello<'_>) -> Option<Arc<CertifiedKey>> {
        Some(self.0.load_full())
    }
}

/// Reads the certificate files every few seconds, and installs a pair that has changed.
struct Follower {
    files: CertificateFiles,
    current: Arc<CurrentCertificate>,
    /// Contents that the last read found, or its error.
    last_read: Result<Contents, String>,
    /// Contents, or error of reading, that were last installed or rejected, and are done with.
    handled: Result<Contents, String>,
    /// Whether `handled` was rejected only for its validity period. It is installed once it is
    /// valid, or once the certificate in use is outdated too.
    is_outdated: bool,
}

impl Follower {
    /// Reads the files and installs a change, either `at_once` or when two reads in a row have
    /// found it.
    fn check(&mut self, at_once: bool) {
        let found = self.files.read().map_err(|error| error.to_string());
        let is_settled = at_once || found == self.last_read;
        self.last_read = found;
        let is_new = self.last_read != self.handled;
        if !is_settled || !is_new && !self.is_outdated {
            return;
        }
        self.handled = self.last_read.clone();
        let (error, is_outdated) = match &self.last_read {
            Ok(contents) => match self.install(contents) {
                Ok(()) => (None, false),
                Err(error) => {
                    let is_outdated =
                        matches!(error.problem, FileProblem::TooEarly(_) | FileProblem::Expired(_));
                    (Some(error.to_string()), is_outdated)
                }
            },
            Err(error) => (Some(error.clone()), false),
        };
        self.is_outdated = is_outdated;
        match error {
            None => info!(file = %self.files.cert.display(), "installed the renewed certificate"),
            Some(error) if is_new => {
                warn!(%error, "cannot use the changed certificate files; keeping the certificate in use");
            }
            Some(_) => {}
        }
    }

    fn install(&self, contents: &Contents) -> Result<(), CertificateError> {
        let new = self.files.parse(contents)?;
        let old = self.current.0.load();
        if let Some(problem) = multinet_pem::replacement_problem(&old.cert, &new.cert, UnixTime::now()) {
            return Err(CertificateError::new(CERT, &self.files.cert, problem));
        }
        self.current.0.store(new);
        Ok(())
    }
}

/// Contents of the certificate file and of the key file.
#[derive(Clone, PartialEq, Eq)]
struct Contents {
    cert: Vec<u8>,
    key: Vec<u8>,
}

impl std::fmt::Debug for Contents {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        // The key must not appear in logs.
        f.debug_struct("Contents").finish_non_exhaustive()
    }
}

/// Paths of the certificate file and of the key file.
#[derive(Debug, Clone)]
struct CertificateFiles {
    cert: PathBuf,
    key: PathBuf,
}

impl CertificateFiles {
    fn read(&self) -> Result<Contents, CertificateError> {
        let read = |flag, file: &Path| {
            multinet_pem::read(file).map_err(|problem| CertificateError::new(flag, file, problem))
        };
        Ok(Contents { cert: read(CERT, &self.cert)?, key: read(KEY, &self.key)? })
    }

    fn parse(&self, contents: &Contents) -> Result<Arc<CertifiedKey>, CertificateError> {
        let certified = multinet_pem::certified_key(
            &ring::default_provider(),
            (&self.cert, &contents.cert),
            &contents.key,
        );
        certified.map(Arc::new).map_err(|unusable| match unusable {
            CertifiedKeyError::Certificate(problem) => CertificateError::new(CERT, &self.cert, problem),
            CertifiedKeyError::Key(problem) => CertificateError::new(KEY, &self.key, problem),
        })
    }
}

const CERT: &str = "--tls-cert";
const KEY: &str = "--tls-key";

/// Reason why the file of `--tls-cert` or `--tls-key` cannot be used.
#[derive(Debug, thiserror::Error)]
#[error("{flag} {}: {problem}", file.display())]
pub struct CertificateError {
    flag: &'static str,
    file: PathBuf,
    problem: FileProblem,
}

impl CertificateError {
    fn new(flag: &'static str, file: &Path, problem: FileProblem) -> Self {
        Self { flag, file: file.to_owned(), problem }
    }
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::time::Duration;

    use multinet_testing::pki::{Authority, Folder, Issued};
    use rustls::pki_types::CertificateDer;
    use tempfile::TempDir;

    use super::*;

    fn pair() -> Issued {
        Authority::new().issue(&["dns.test"])
    }

    fn load(folder: &Path) -> Result<Certificates, CertificateError> {
        Certificates::load(folder.join("tls.crt"), folder.join("tls.key"))
    }

    fn in_use(certificates: &Certificates) -> CertificateDer<'static> {
        certificates.current.0.load().cert[0].clone()
    }

    #[test]
    fn a_pair_is_loaded() {
        let pair = pair();
        let certificates = load(Folder::of(&pair, "").path()).unwrap();
        assert_eq!(in_use(&certificates), pair.der());
        let config = certificates.server_config(&[b"dot"]);
        assert_eq!(config.alpn_protocols, [b"dot".to_vec()]);
    }

    #[test]
    fn an_error_is_one_line_that_names_the_file_and_the_remedy() {
        let good = pair();
        let broken = |text: &str| text.replace("-----END", "!----END");
        let encrypted = "-----BEGIN ENCRYPTED PRIVATE KEY-----\nAAAA\n-----END ENCRYPTED PRIVATE KEY-----\n";
        let nonsense = "-----BEGIN PRIVATE KEY-----\nAAAA\n-----END PRIVATE KEY-----\n";
        let no_x509 = "-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n";
        for (chain, key, file, says) in [
            (good.key.clone(), good.key.clone(), "tls.crt", "no certificate in PEM"),
            (String::new(), good.key.clone(), "tls.crt", "no certificate in PEM"),
            (broken(&good.chain), good.key.clone(), "tls.crt", "not valid PEM"),
            (no_x509.to_owned(), good.key.clone(), "tls.crt", "not a valid X.509 certificate"),
            (good.chain.clone(), good.chain.clone(), "tls.key", "no private key in PEM"),
            (good.chain.clone(), broken(&good.key), "tls.key", "not valid PEM"),
            (good.chain.clone(), encrypted.to_owned(), "tls.key", "openssl pkey"),
            (good.chain.clone(), nonsense.to_owned(), "tls.key", "unsupported kind"),
            (good.chain.clone(), pair().key, "tls.key", "is not the key of the certificate in"),
        ] {
            let error = load(Folder::of(&Issued { chain, key }, "").path()).unwrap_err().to_string();
            assert!(error.starts_with("--tls-") && error.contains(file) && error.contains(says), "{error}");
            assert!(!error.contains('\n'), "{error}");
        }
        let folder = Folder::of(&good, "");
        fs::remove_file(folder.path().join("tls.key")).unwrap();
        let error = load(folder.path()).unwrap_err().to_string();
        assert!(error.starts_with("--tls-key") && error.contains("No such file"), "{error}");
    }

    /// Waits until the follower has read the files `times` times.
    async fn checks(times: u32) {
        tokio::time::sleep(CERTIFICATE_INTERVAL * times + CERTIFICATE_INTERVAL / 2).await;
    }

    #[tokio::test(start_paused = true)]
    async fn a_new_pair_is_installed_and_a_broken_one_is_not() {
        let (first, second, third) = (pair(), pair(), pair());
        let folder = Folder::of(&first, "");
        let certificates = load(folder.path()).unwrap();
        let shutdown = CancellationToken::new();
        let following = tokio::spawn(certificates.clone().follow(shutdown.clone()));

        checks(2).await;
        assert_eq!(in_use(&certificates), first.der());
        folder.put(&second, "");
        checks(2).await;
        assert_eq!(in_use(&certificates), second.der());

        // The certificate of one pair with the key of another, and then no key at all.
        fs::write(folder.path().join("tls.crt"), &third.chain).unwrap();
        checks(3).await;
        fs::remove_file(folder.path().join("tls.key")).unwrap();
        checks(3).await;
        assert_eq!(in_use(&certificates), second.der());
        fs::write(folder.path().join("tls.key"), &third.key).unwrap();
        checks(2).await;
        assert_eq!(in_use(&certificates), third.der());

        shutdown.cancel();
        following.await.unwrap();
    }

    #[tokio::test(start_paused = true)]
    async fn a_pair_behind_a_swapped_link_is_installed() {
        let (first, second) = (pair(), pair());
        let (old, new) = (Folder::of(&first, ""), Folder::of(&second, ""));
        let mount = TempDir::new().unwrap();
        let data = mount.path().join("..data");
        std::os::unix::fs::symlink(old.path(), &data).unwrap();
        for name in ["tls.crt", "tls.key"] {
            std::os::unix::fs::symlink(format!("..data/{name}"), mount.path().join(name)).unwrap();
        }
        let certificates = load(mount.path()).unwrap();
        tokio::spawn(certificates.clone().follow(CancellationToken::new()));

        let next = mount.path().join("..next");
        std::os::unix::fs::symlink(new.path(), &next).unwrap();
        fs::rename(&next, &data).unwrap();
        checks(2).await;
        assert_eq!(in_use(&certificates), second.der());
    }

    /// A certificate of the year 2024.
    fn expired() -> Issued {
        Authority::new().issue_as(&["dns.test"], |params| {
            params.not_before = rcgen::date_time_ymd(2024, 1, 1);
            params.not_after = rcgen::date_time_ymd(2025, 1, 1);
        })
    }

    /// A pair that is not valid yet is installed when its time comes, without a change of the
    /// files.
    #[test]
    fn a_valid_pair_is_replaced_only_by_a_valid_one() {
        let (good, old) = (pair(), expired());
        let folder = Folder::of(&good, "");
        let Certificates { files, loaded, current, .. } = load(folder.path()).unwrap();
        let (last_read, handled) = (Ok(loaded.clone()), Ok(loaded));
        let mut follower = Follower { files, current, last_read, handled, is_outdated: false };
        let in_use = |follower: &Follower| follower.current.0.load().cert[0].clone();
        folder.put(&old, "");
        follower.check(true);
        assert_eq!(in_use(&follower), good.der());
        // Once the pair in use has expired as well, the outdated pair is installed without a change
        // of the files.
        follower.current = load(Folder::of(&expired(), "").path()).unwrap().current;
        follower.check(false);
        assert_eq!(in_use(&follower), old.der());
        // At the start there is no better certificate than an expired one.
        let certificates = load(folder.path()).unwrap();
        follower.current = certificates.current;
        assert_eq!(in_use(&follower), old.der());
        folder.put(&good, "");
        follower.check(true);
        assert_eq!(in_use(&follower), good.der());

        let begin = Duration::from_secs(UnixTime::now().as_secs() + 2);
        let early = Authority::new().issue_as(&["dns.test"], |params| {
            params.not_before = rcgen::date_time_ymd(1970, 1, 1) + begin;
        });
        folder.put(&early, "");
        follower.check(true);
        assert_eq!(in_use(&follower), good.der());
        while in_use(&follower) != early.der() {
            std::thread::sleep(Duration::from_millis(50));
            follower.check(false);
        }
        assert!(UnixTime::now().as_secs() >= begin.as_secs());
    }

    #[tokio::test(start_paused = true)]
    async fn sighup_installs_the_files_at_once() {
        let (first, second) = (pair(), pair());
        let folder = Folder::of(&first, "");
        let certificates = load(folder.path()).unwrap();
        tokio::spawn(certificates.clone().follow(CancellationToken::new()));
        checks(1).await;
        folder.put(&second, "");
        let pid = std::process::id().to_string();
        assert!(std::process::Command::new("kill").args(["-HUP", &pid]).status().unwrap().success());
        // The paused clock has not reached the next read.
        while in_use(&certificates) != second.der() {
            tokio::task::yield_now().await;
        }
    }

    #[test]
    fn a_pair_that_is_still_being_written_is_not_installed() {
        let (first, second) = (pair(), pair());
        let folder = Folder::of(&first, "");
        let Certificates { files, loaded, current, .. } = load(folder.path()).unwrap();
        let (last_read, handled) = (Ok(loaded.clone()), Ok(loaded));
        let mut follower = Follower { files, current, last_read, handled, is_outdated: false };
        fs::write(folder.path().join("tls.crt"), &second.chain).unwrap();
        follower.check(false);
        assert!(follower.handled.as_ref().is_ok_and(|handled| handled.cert == first.chain.as_bytes()));
        fs::write(folder.path().join("tls.key"), &second.key).unwrap();
        follower.check(false);
        assert_eq!(follower.current.0.load().cert[0], first.der());
        follower.check(false);
        assert_eq!(follower.current.0.load().cert[0], second.der());
    }
}
