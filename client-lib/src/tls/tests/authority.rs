//! Authorities, certificates, and the files that they are mounted as.

use std::fs;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use rcgen::{
    BasicConstraints, CertificateParams, CertifiedIssuer, DnType, ExtendedKeyUsagePurpose, IsCa, KeyPair,
    SanType,
};
use rustls::pki_types::CertificateDer;
use rustls::pki_types::pem::PemObject as _;
use tempfile::TempDir;

use crate::tls::Tls;
use crate::tls::files::{Files, Store};

/// Issues certificates.
pub(crate) struct Authority {
    issuer: CertifiedIssuer<'static, KeyPair>,
    /// The certificates between it and the trust anchor.
    between: String,
}

/// A chain and its key, in PEM.
pub(crate) struct Issued {
    pub(crate) chain: String,
    pub(crate) key: String,
}

impl Authority {
    /// A trust anchor with a name of its own.
    pub(crate) fn new() -> Self {
        let key = KeyPair::generate().unwrap();
        Self::keyed(&format!("authority {:?}", &key.public_key_raw()[..8]), key)
    }

    /// A trust anchor of this name.
    pub(crate) fn named(name: &str) -> Self {
        Self::keyed(name, KeyPair::generate().unwrap())
    }

    fn keyed(name: &str, key: KeyPair) -> Self {
        let issuer = CertifiedIssuer::self_signed(params_of_authority(name), key).unwrap();
        Self { issuer, between: String::new() }
    }

    /// An authority that this one vouches for.
    pub(crate) fn below(&self, name: &str) -> Self {
        let key = KeyPair::generate().unwrap();
        let issuer = CertifiedIssuer::signed_by(params_of_authority(name), key, &self.issuer).unwrap();
        let between = format!("{}{}", issuer.pem(), self.between);
        Self { issuer, between }
    }

    /// Its certificate, as a trust file.
    pub(crate) fn pem(&self) -> String {
        self.issuer.pem()
    }

    /// A certificate for these SPIFFE IDs and DNS names, valid and for both sides.
    pub(crate) fn issue(&self, names: &[&str]) -> Issued {
        self.issue_as(names, |_| {})
    }

    /// One that is special.
    pub(crate) fn issue_as(&self, names: &[&str], change: impl FnOnce(&mut CertificateParams)) -> Issued {
        let mut params = CertificateParams::default();
        let name = |&name: &&str| match name.contains("://") {
            true => SanType::URI(name.try_into().unwrap()),
            false => SanType::DnsName(name.try_into().unwrap()),
        };
        params.subject_alt_names = names.iter().map(name).collect();
        params.extended_key_usages =
            vec![ExtendedKeyUsagePurpose::ServerAuth, ExtendedKeyUsagePurpose::ClientAuth];
        change(&mut params);
        let key = KeyPair::generate().unwrap();
        let certificate = params.signed_by(&key, &self.issuer).unwrap();
        Issued { chain: format!("{}{}", certificate.pem(), self.between), key: key.serialize_pem() }
    }
}

fn params_of_authority(name: &str) -> CertificateParams {
    let mut params = CertificateParams::default();
    params.distinguished_name.push(DnType::CommonName, name);
    params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    params
}

impl Issued {
    /// The certificate itself.
    pub(crate) fn der(&self) -> Vec<u8> {
        CertificateDer::from_pem_slice(self.chain.as_bytes()).unwrap().to_vec()
    }
}

/// A mounted secret.
pub(crate) struct Folder(TempDir);

impl Folder {
    pub(crate) fn new() -> Self {
        Self(TempDir::new().unwrap())
    }

    /// A certificate with its key, and the authorities to trust.
    pub(crate) fn of(issued: &Issued, trust: &str) -> Self {
        let folder = Self::new();
        folder.put(issued, trust);
        folder
    }

    pub(crate) fn put(&self, issued: &Issued, trust: &str) {
        self.write(&issued.chain, &issued.key, trust);
    }

    pub(crate) fn write(&self, chain: &str, key: &str, trust: &str) {
        for (name, text) in [("tls.crt", chain), ("tls.key", key), ("ca.crt", trust)] {
            fs::write(self.path().join(name), text).unwrap();
        }
    }

    pub(crate) fn path(&self) -> &Path {
        self.0.path()
    }

    pub(in crate::tls) fn files(&self) -> Files {
        let [certificate, key, trust] = ["tls.crt", "tls.key", "ca.crt"].map(|name| self.path().join(name));
        Files { certificate, key, trust }
    }

    /// A side that looks at its files at every handshake.
    pub(crate) fn tls(&self) -> Tls {
        let store = Store::every(Duration::ZERO, self.files()).unwrap();
        Tls { store: Arc::new(store), expected: Arc::default() }
    }
}
