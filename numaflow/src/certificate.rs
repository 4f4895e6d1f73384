//! Certificates that the program makes for its webhook, and when the next one is due (pure).
//!
//! ```text
//!  made ───────────── 2/3 of its lifetime ──── a hundredth later ────────── end
//!   in use                next one is made,       next one is in use,
//!                         API servers trust both  both are still trusted
//! ```
//!
//! A certificate is its own authority, and its key never signs another one. All replicas serve the
//! same one, from a Secret. API servers trust the next certificate before any replica serves it,
//! and the last one until all replicas have changed.

use std::time::{Duration, SystemTime};

use rcgen::{CertificateParams, DnType, ExtendedKeyUsagePurpose, KeyPair};
use serde::{Deserialize, Serialize};

/// Time by which the clocks of API servers, and of other replicas, may be behind.
const CLOCKS: Duration = Duration::from_secs(3600);

/// Contents of the Secret: the certificate in use, and its successor.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Store {
    /// Certificate that replicas serve.
    pub current: Option<Issued>,
    /// Certificate that they will serve.
    pub next: Option<Issued>,
    /// Certificates that API servers have to trust, in PEM.
    pub trusted: String,
}

/// Certificate with its key.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Issued {
    /// Certificate in PEM.
    pub certificate: String,
    /// Private key in PEM.
    pub key: String,
    /// DNS names and addresses that it is valid for.
    pub names: Vec<String>,
    /// Time when it was made, in seconds since the Unix epoch.
    pub made: u64,
    /// Time for which it is valid since then, in seconds.
    pub lifetime: u64,
}

impl Issued {
    /// Returns the end of its validity, in seconds since the Unix epoch.
    pub fn end(&self) -> u64 {
        self.made.saturating_add(self.lifetime)
    }
}

impl Store {
    /// Returns the contents that have to replace these now; `None` if they are still right.
    ///
    /// # Errors
    ///
    /// If no certificate can be made for `names`.
    pub fn step(&self, names: &[String], now: u64, lifetime: u64) -> Result<Option<Self>, rcgen::Error> {
        let is_valid = |it: &&Issued| it.made <= now.saturating_add(CLOCKS.as_secs()) && now < it.end();
        let current = self.current.as_ref().filter(|it| it.names == names).filter(is_valid);
        let Some(current) = current else {
            let made = issue(names, now, lifetime)?;
            return Ok(Some(Self { trusted: made.certificate.clone(), current: Some(made), next: None }));
        };
        if let Some(next) = &self.next {
            let is_due = now >= next.made.saturating_add(next.lifetime / 100);
            return Ok(is_due.then(|| Self { current: Some(next.clone()), next: None, ..self.clone() }));
        }
        if now < current.made.saturating_add(current.lifetime / 3 * 2) {
            return Ok(None);
        }
        let next = issue(names, now, lifetime)?;
        let trusted = format!("{}{}", current.certificate, next.certificate);
        Ok(Some(Self { current: Some(current.clone()), next: Some(next), trusted }))
    }
}

/// Makes a certificate for these DNS names and addresses.
fn issue(names: &[String], made: u64, lifetime: u64) -> Result<Issued, rcgen::Error> {
    let key = KeyPair::generate()?;
    let mut params = CertificateParams::new(names)?;
    params.distinguished_name.push(DnType::CommonName, "multinet-numaflow");
    params.extended_key_usages = vec![ExtendedKeyUsagePurpose::ServerAuth];
    let at = |seconds| SystemTime::UNIX_EPOCH + Duration::from_secs(seconds);
    params.not_before = (at(made) - CLOCKS).into();
    params.not_after = at(made.saturating_add(lifetime)).into();
    let certificate = params.self_signed(&key)?;
    let (certificate, key) = (certificate.pem(), key.serialize_pem());
    Ok(Issued { certificate, key, names: names.to_vec(), made, lifetime })
}

#[cfg(test)]
mod tests {
    use super::*;

    const DAY: u64 = 86_400;
    const LIFE: u64 = 90 * DAY;

    fn names(name: &str) -> Vec<String> {
        vec![name.to_owned()]
    }

    #[test]
    fn a_certificate_is_followed_by_one_that_is_trusted_before_it_is_used() {
        let (names, start) = (names("numaflow.multinet-system.svc"), 1_800_000_000);
        let first = Store::default().step(&names, start, LIFE).unwrap().unwrap();
        assert_eq!(first.step(&names, start + 59 * DAY, LIFE).unwrap(), None);

        let both = first.step(&names, start + 60 * DAY, LIFE).unwrap().unwrap();
        assert_eq!(both.current, first.current);
        assert_eq!(both.trusted.matches("BEGIN CERTIFICATE").count(), 2);
        assert_eq!(both.step(&names, start + 60 * DAY + LIFE / 100 - 1, LIFE).unwrap(), None);

        let second = both.step(&names, start + 60 * DAY + LIFE / 100, LIFE).unwrap().unwrap();
        assert_eq!((&second.current, &second.next, &second.trusted), (&both.next, &None, &both.trusted));
        assert_eq!(second.step(&names, start + 61 * DAY, LIFE).unwrap(), None);
    }

    #[test]
    fn a_certificate_that_does_not_serve_is_replaced_at_once() {
        let (here, start) = (names("a.svc"), 1_800_000_000);
        let store = Store::default().step(&here, start, LIFE).unwrap().unwrap();
        // The clock of the replica that made it may be ahead.
        assert_eq!(store.step(&here, start - 3600, LIFE).unwrap(), None);
        for (names, now) in [(&here, start + LIFE), (&here, start - 3601), (&names("b.svc"), start)] {
            let new = store.step(names, now, LIFE).unwrap().unwrap();
            assert_eq!(new.current.as_ref().map(|it| &it.names), Some(names));
            assert_ne!(new.current, store.current);
            assert!(new.trusted == new.current.unwrap().certificate && new.next.is_none());
        }
    }

    #[test]
    fn certificates_are_for_names_and_addresses() {
        let store = Store::default().step(&names("127.0.0.1"), 1_800_000_000, LIFE).unwrap().unwrap();
        let issued = store.current.unwrap();
        let provider = rustls::crypto::ring::default_provider();
        let chain = (std::path::Path::new("tls.crt"), issued.certificate.as_bytes());
        assert!(multinet_pem::certified_key(&provider, chain, issued.key.as_bytes()).is_ok());
    }
}
