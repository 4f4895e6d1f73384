//! Authorities, certificates, and the files that they are mounted as: for tests within the crate and without.

use std::fs;
use std::path::{Path, PathBuf};

use rcgen::{
    BasicConstraints, CertificateParams, CertifiedIssuer, DnType, ExtendedKeyUsagePurpose, IsCa, KeyPair,
    SanType,
};
use tempfile::TempDir;

/// Issues certificates.
pub(crate) struct Authority {
    pub(crate) issuer: CertifiedIssuer<'static, KeyPair>,
    /// The certificates between it and the trust anchor.
    pub(crate) between: String,
}

/// A chain and its key, in PEM.
pub(crate) struct Issued {
    pub(crate) chain: String,
    pub(crate) key: String,
}

impl Authority {
    /// A trust anchor of this name.
    pub(crate) fn named(name: &str) -> Self {
        let key = KeyPair::generate().unwrap();
        let issuer = CertifiedIssuer::self_signed(params_of_authority(name), key).unwrap();
        Self { issuer, between: String::new() }
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

pub(crate) fn params_of_authority(name: &str) -> CertificateParams {
    let mut params = CertificateParams::default();
    params.distinguished_name.push(DnType::CommonName, name);
    params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    params
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
        for (file, text) in self.paths().into_iter().zip([chain, key, trust]) {
            fs::write(file, text).unwrap();
        }
    }

    pub(crate) fn path(&self) -> &Path {
        self.0.path()
    }

    /// Where the chain, the key, and the trust anchors lie.
    pub(crate) fn paths(&self) -> [PathBuf; 3] {
        ["tls.crt", "tls.key", "ca.crt"].map(|name| self.path().join(name))
    }
}
