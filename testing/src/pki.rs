//! Certificate authorities of tests, and the files that their certificates are mounted as.

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

/// Issues certificates.
#[derive(Debug)]
pub struct Authority {
    issuer: CertifiedIssuer<'static, KeyPair>,
    /// The certificates between it and the trust anchor.
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
    /// A trust anchor with a name that no other has.
    pub fn new() -> Self {
        Self::default()
    }

    /// A trust anchor of this name.
    pub fn named(name: &str) -> Self {
        Self::with_key(name, KeyPair::generate().expect("a key"))
    }

    fn with_key(name: &str, key: KeyPair) -> Self {
        let issuer = CertifiedIssuer::self_signed(params_of_authority(name), key).expect("a certificate");
        Self { issuer, between: String::new() }
    }

    /// An authority that this one vouches for.
    #[must_use]
    pub fn below(&self, name: &str) -> Self {
        let key = KeyPair::generate().expect("a key");
        let issuer =
            CertifiedIssuer::signed_by(params_of_authority(name), key, &self.issuer).expect("a certificate");
        let between = format!("{}{}", issuer.pem(), self.between);
        Self { issuer, between }
    }

    /// Its certificate, as a trust file.
    pub fn pem(&self) -> String {
        self.issuer.pem()
    }

    /// Its certificate, as all that a side of TLS trusts.
    pub fn roots(&self) -> RootCertStore {
        let mut roots = RootCertStore::empty();
        roots.add(self.issuer.der().clone()).expect("a sound certificate");
        roots
    }

    /// A certificate for these SPIFFE IDs and DNS names, valid and for both sides.
    pub fn issue(&self, names: &[&str]) -> Issued {
        self.issue_as(names, |_| {})
    }

    /// One that is special.
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

/// A chain and its key, in PEM.
#[derive(Debug)]
pub struct Issued {
    /// The certificate, and those between it and the trust anchor.
    pub chain: String,
    /// Its private key.
    pub key: String,
}

impl Issued {
    /// The certificate itself.
    pub fn der(&self) -> CertificateDer<'static> {
        CertificateDer::from_pem_slice(self.chain.as_bytes()).expect("a certificate")
    }

    /// Its private key.
    pub fn key_der(&self) -> PrivateKeyDer<'static> {
        PrivateKeyDer::from_pem_slice(self.key.as_bytes()).expect("a key")
    }
}

/// A mounted secret: `tls.crt`, `tls.key` and `ca.crt`.
#[derive(Debug)]
pub struct Folder(TempDir);

impl Default for Folder {
    fn default() -> Self {
        Self(TempDir::new().expect("a folder"))
    }
}

impl Folder {
    /// An empty folder.
    pub fn new() -> Self {
        Self::default()
    }

    /// A certificate with its key, and the authorities to trust.
    pub fn of(issued: &Issued, trust: &str) -> Self {
        let folder = Self::new();
        folder.put(issued, trust);
        folder
    }

    /// Replaces all three files.
    pub fn put(&self, issued: &Issued, trust: &str) {
        self.write(&issued.chain, &issued.key, trust);
    }

    /// Replaces all three files by any text.
    pub fn write(&self, chain: &str, key: &str, trust: &str) {
        for (file, text) in self.paths().into_iter().zip([chain, key, trust]) {
            fs::write(file, text).expect("a file");
        }
    }

    /// The folder.
    pub fn path(&self) -> &Path {
        self.0.path()
    }

    /// The paths of the chain, the key, and the trust anchors.
    pub fn paths(&self) -> [PathBuf; 3] {
        ["tls.crt", "tls.key", "ca.crt"].map(|name| self.path().join(name))
    }
}

/// Authority that issues its certificates into one folder.
#[derive(Debug)]
pub struct FileAuthority {
    authority: Authority,
    folder: PathBuf,
}

/// The files of a certificate and its key, in PEM.
#[derive(Debug, Clone)]
pub struct Certificate {
    /// The certificate.
    pub cert: PathBuf,
    /// Its private key.
    pub key: PathBuf,
}

impl FileAuthority {
    /// Makes an authority. Its own certificate is `ca.crt` in `folder`.
    pub fn new(folder: &Path) -> Result<Self> {
        fs::create_dir_all(folder)?;
        let authority = Self { authority: Authority::named("test authority"), folder: folder.to_owned() };
        write(&authority.ca(), &authority.authority.pem())?;
        Ok(authority)
    }

    /// The file of the authority's certificate.
    pub fn ca(&self) -> PathBuf {
        self.folder.join("ca.crt")
    }

    /// A certificate for loopback and the DNS name `name`, which also names the files.
    pub fn server(&self, name: &str) -> Result<Certificate> {
        self.server_at(name, Ipv4Addr::LOCALHOST)
    }

    /// The same, for one more address.
    pub fn server_at(&self, name: &str, address: Ipv4Addr) -> Result<Certificate> {
        let addresses = [Ipv4Addr::LOCALHOST, address].map(|each| SanType::IpAddress(IpAddr::V4(each)));
        self.issue(name, &[name], |params| params.subject_alt_names.extend(addresses))
    }

    /// A client's certificate for the user `name`, a member of `group`.
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

/// A pair of keys without a certificate, the public one in the field `cert`: for the tokens of service accounts.
pub fn key_pair(folder: &Path, name: &str) -> Result<Certificate> {
    let pair = KeyPair::generate()?;
    Certificate::write(folder, name, "pub", &pair.public_key_pem(), &pair.serialize_pem())
}

fn write(path: &Path, text: &str) -> Result<()> {
    fs::write(path, text).with_context(|| format!("cannot write {}", path.display()))
}
