//! Certificate authorities for tests, and the files in which certificates are mounted.

#![allow(clippy::expect_used, reason = "what goes wrong in a test fails it")]

use std::fs;
use std::net::{IpAddr, Ipv4Addr};
use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result};
use rcgen::{
    BasicConstraints, CertificateParams, CertifiedIssuer, DnType, ExtendedKeyUsagePurpose, IsCa, KeyPair,
    KeyUsagePurpose, SanType,
};
use rustls::RootCertStore;
use rustls::pki_types::pem::PemObject as _;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use tempfile::TempDir;

/// Certificate authority.
#[derive(Debug)]
pub struct Authority {
    issuer: CertifiedIssuer<'static, KeyPair>,
    /// PEM of the certificates between this authority and the trust anchor.
    between: String,
}

impl Default for Authority {
    fn default() -> Self {
        let key = KeyPair::generate().expect("a key");
        let name = format!("authority {:x?}", &key.public_key_raw()[..8]);
        Self::with_key(&name, key)
    }
}

impl Authority {
    /// Creates a trust anchor with a unique name.
    pub fn new() -> Self {
        Self::default()
    }

    /// Creates a trust anchor of this name.
    pub fn named(name: &str) -> Self {
        Self::with_key(name, KeyPair::generate().expect("a key"))
    }

    fn with_key(name: &str, key: KeyPair) -> Self {
        let issuer = CertifiedIssuer::self_signed(params_of_authority(name), key).expect("a certificate");
        Self { issuer, between: String::new() }
    }

    /// Creates an intermediate authority, issued by this one.
    #[must_use]
    pub fn below(&self, name: &str) -> Self {
        let key = KeyPair::generate().expect("a key");
        let issuer =
            CertifiedIssuer::signed_by(params_of_authority(name), key, &self.issuer).expect("a certificate");
        let between = format!("{}{}", issuer.pem(), self.between);
        Self { issuer, between }
    }

    /// Returns the authority's certificate in PEM.
    pub fn pem(&self) -> String {
        self.issuer.pem()
    }

    /// Returns a store of roots with only this authority.
    pub fn roots(&self) -> RootCertStore {
        let mut roots = RootCertStore::empty();
        roots.add(self.issuer.der().clone()).expect("a sound certificate");
        roots
    }

    /// Issues a certificate for these SPIFFE IDs and DNS names, for both servers and clients.
    pub fn issue(&self, names: &[&str]) -> Issued {
        self.issue_as(names, |_| {})
    }

    /// Issues a certificate with parameters that `change` adapts.
    pub fn issue_as(&self, names: &[&str], change: impl FnOnce(&mut CertificateParams)) -> Issued {
        let mut params = CertificateParams::default();
        let name = |&name: &&str| match name.contains("://") {
            true => SanType::URI(name.try_into().expect("a URI")),
            false => SanType::DnsName(name.try_into().expect("a DNS name")),
        };
        params.subject_alt_names = names.iter().map(name).collect();
        params.extended_key_usages =
            vec![ExtendedKeyUsagePurpose::ServerAuth, ExtendedKeyUsagePurpose::ClientAuth];
        change(&mut params);
        let key = KeyPair::generate().expect("a key");
        let certificate = params.signed_by(&key, &self.issuer).expect("a certificate");
        Issued { chain: format!("{}{}", certificate.pem(), self.between), key: key.serialize_pem() }
    }
}

fn params_of_authority(name: &str) -> CertificateParams {
    let mut params = CertificateParams::default();
    params.distinguished_name.push(DnType::CommonName, name);
    params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    params.key_usages = vec![KeyUsagePurpose::KeyCertSign, KeyUsagePurpose::CrlSign];
    params
}

/// Certificate chain and its private key, in PEM.
#[derive(Debug)]
pub struct Issued {
    /// The certificate, and those between it and the trust anchor.
    pub chain: String,
    /// Its private key.
    pub key: String,
}

impl Issued {
    /// Returns the certificate itself in DER.
    pub fn der(&self) -> CertificateDer<'static> {
        CertificateDer::from_pem_slice(self.chain.as_bytes()).expect("a certificate")
    }

    /// Returns the private key in DER.
    pub fn key_der(&self) -> PrivateKeyDer<'static> {
        PrivateKeyDer::from_pem_slice(self.key.as_bytes()).expect("a key")
    }
}

/// Folder like a mounted secret, with `tls.crt`, `tls.key` and `ca.crt`.
#[derive(Debug)]
pub struct Folder(TempDir);

impl Default for Folder {
    fn default() -> Self {
        Self(TempDir::new().expect("a folder"))
    }
}

impl Folder {
    /// Creates an empty folder.
    pub fn new() -> Self {
        Self::default()
    }

    /// Creates a folder with a certificate, its key, and the authorities to trust.
    pub fn of(issued: &Issued, trust: &str) -> Self {
        let folder = Self::new();
        folder.put(issued, trust);
        folder
    }

    /// Replaces all three files by a certificate, its key, and the authorities to trust.
    pub fn put(&self, issued: &Issued, trust: &str) {
        self.write(&issued.chain, &issued.key, trust);
    }

    /// Replaces all three files by these texts.
    pub fn write(&self, chain: &str, key: &str, trust: &str) {
        for (file, text) in self.paths().into_iter().zip([chain, key, trust]) {
            fs::write(file, text).expect("a file");
        }
    }

    /// Returns the path of the folder.
    pub fn path(&self) -> &Path {
        self.0.path()
    }

    /// Returns the paths of the chain, the key, and the trust anchors.
    pub fn paths(&self) -> [PathBuf; 3] {
        ["tls.crt", "tls.key", "ca.crt"].map(|name| self.path().join(name))
    }
}

/// Certificate authority that issues its certificates into a folder.
#[derive(Debug)]
pub struct FileAuthority {
    authority: Authority,
    folder: PathBuf,
}

/// Files of a certificate and its key, in PEM.
#[derive(Debug, Clone)]
pub struct Certificate {
    /// The certificate.
    pub cert: PathBuf,
    /// Its private key.
    pub key: PathBuf,
}

impl FileAuthority {
    /// Creates an authority whose own certificate is `ca.crt` in `folder`.
    pub fn new(folder: &Path) -> Result<Self> {
        fs::create_dir_all(folder)?;
        let authority = Self { authority: Authority::named("test authority"), folder: folder.to_owned() };
        write(&authority.ca(), &authority.authority.pem())?;
        Ok(authority)
    }

    /// Returns the path of the authority's certificate.
    pub fn ca(&self) -> PathBuf {
        self.folder.join("ca.crt")
    }

    /// Issues a certificate for loopback and the DNS name `name`, which also names the files.
    pub fn server(&self, name: &str) -> Result<Certificate> {
        self.server_at(name, Ipv4Addr::LOCALHOST)
    }

    /// Issues a certificate for loopback, the DNS name `name`, and one more address.
    pub fn server_at(&self, name: &str, address: Ipv4Addr) -> Result<Certificate> {
        let addresses = [Ipv4Addr::LOCALHOST, address].map(|each| SanType::IpAddress(IpAddr::V4(each)));
        self.issue(name, &[name], |params| params.subject_alt_names.extend(addresses))
    }

    /// Issues a client certificate for the user `name`, a member of `group`.
    pub fn client(&self, name: &str, group: &str) -> Result<Certificate> {
        self.issue(name, &[], |params| params.distinguished_name.push(DnType::OrganizationName, group))
    }

    fn issue(
        &self,
        name: &str,
        names: &[&str],
        change: impl FnOnce(&mut CertificateParams),
    ) -> Result<Certificate> {
        let issued = self.authority.issue_as(names, |params| {
            params.distinguished_name.push(DnType::CommonName, name);
            change(params);
        });
        Certificate::write(&self.folder, name, "crt", &issued.chain, &issued.key)
    }
}

impl Certificate {
    fn write(folder: &Path, name: &str, suffix: &str, cert: &str, key: &str) -> Result<Self> {
        let files =
            Self { cert: folder.join(format!("{name}.{suffix}")), key: folder.join(format!("{name}.key")) };
        write(&files.cert, cert)?;
        write(&files.key, key)?;
        Ok(files)
    }
}

/// Creates a key pair for the tokens of service accounts. The field `cert` is the file of the
/// public key.
pub fn key_pair(folder: &Path, name: &str) -> Result<Certificate> {
    let pair = KeyPair::generate()?;
    Certificate::write(folder, name, "pub", &pair.public_key_pem(), &pair.serialize_pem())
}

fn write(path: &Path, text: &str) -> Result<()> {
    fs::write(path, text).with_context(|| format!("cannot write {}", path.display()))
}
