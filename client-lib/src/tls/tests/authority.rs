//! What the tests of this module do with certificates beyond what all tests do.

#[path = "../../../tests/support/pki.rs"]
mod pki;

use std::sync::Arc;
use std::time::Duration;

use rcgen::{CertifiedIssuer, KeyPair};
use rustls::pki_types::CertificateDer;
use rustls::pki_types::pem::PemObject as _;

pub(crate) use self::pki::{Authority, Folder, Issued};
use crate::tls::Tls;
use crate::tls::files::{Files, Store};

impl Authority {
    /// A trust anchor with a name of its own.
    pub(crate) fn new() -> Self {
        Self::named(&format!("authority {:x}", fastrand::u64(..)))
    }

    /// An authority that this one vouches for.
    pub(crate) fn below(&self, name: &str) -> Self {
        let key = KeyPair::generate().unwrap();
        let params = pki::params_of_authority(name);
        let issuer = CertifiedIssuer::signed_by(params, key, &self.issuer).unwrap();
        let between = format!("{}{}", issuer.pem(), self.between);
        Self { issuer, between }
    }
}

impl Issued {
    /// The certificate itself.
    pub(crate) fn der(&self) -> Vec<u8> {
        CertificateDer::from_pem_slice(self.chain.as_bytes()).unwrap().to_vec()
    }
}

impl Folder {
    pub(in crate::tls) fn files(&self) -> Files {
        let [certificate, key, trust] = self.paths();
        Files { certificate, key, trust }
    }

    /// A side that looks at its files at every handshake.
    pub(crate) fn tls(&self) -> Tls {
        let store = Store::every(Duration::ZERO, Duration::from_secs(60), self.files()).unwrap();
        Tls { store: Arc::new(store), expected: Arc::default() }
    }
}
