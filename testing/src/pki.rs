//! A certificate authority of a test's own.

use std::fs;
use std::net::{IpAddr, Ipv4Addr};
use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result};
use rcgen::{
    BasicConstraints, CertificateParams, CertifiedIssuer, DnType, ExtendedKeyUsagePurpose, IsCa, KeyPair,
    KeyUsagePurpose, SanType,
};

/// An authority that issues certificates into one folder.
#[derive(Debug)]
pub struct Authority {
    issuer: CertifiedIssuer<'static, KeyPair>,
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

impl Authority {
    /// Makes an authority. Its own certificate is `ca.crt` in `folder`.
    pub fn new(folder: &Path) -> Result<Self> {
        fs::create_dir_all(folder)?;
        let mut params = CertificateParams::default();
        params.distinguished_name.push(DnType::CommonName, "test authority");
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        params.key_usages = vec![KeyUsagePurpose::KeyCertSign, KeyUsagePurpose::CrlSign];
        let issuer = CertifiedIssuer::self_signed(params, KeyPair::generate()?)?;
        let authority = Self { issuer, folder: folder.to_owned() };
        write(&authority.ca(), &authority.issuer.pem())?;
        Ok(authority)
    }

    /// The file of the authority's certificate.
    pub fn ca(&self) -> PathBuf {
        self.folder.join("ca.crt")
    }

    /// A server's certificate for loopback and the DNS name `name`, which also names the files.
    pub fn server(&self, name: &str) -> Result<Certificate> {
        self.server_at(name, Ipv4Addr::LOCALHOST)
    }

    /// The same, for one more address.
    pub fn server_at(&self, name: &str, address: Ipv4Addr) -> Result<Certificate> {
        let mut params = CertificateParams::new([name.to_owned()])?;
        for address in [Ipv4Addr::LOCALHOST, address] {
            params.subject_alt_names.push(SanType::IpAddress(IpAddr::V4(address)));
        }
        params.extended_key_usages = vec![ExtendedKeyUsagePurpose::ServerAuth];
        self.issue(name, params)
    }

    /// A certificate for both sides of mutual TLS, for the DNS name `name`.
    pub fn peer(&self, name: &str) -> Result<Certificate> {
        let mut params = CertificateParams::new([name.to_owned()])?;
        params.extended_key_usages =
            vec![ExtendedKeyUsagePurpose::ServerAuth, ExtendedKeyUsagePurpose::ClientAuth];
        self.issue(name, params)
    }

    /// A client's certificate for the user `name`, a member of `group`.
    pub fn client(&self, name: &str, group: &str) -> Result<Certificate> {
        let mut params = CertificateParams::default();
        params.distinguished_name.push(DnType::OrganizationName, group);
        params.extended_key_usages = vec![ExtendedKeyUsagePurpose::ClientAuth];
        self.issue(name, params)
    }

    fn issue(&self, name: &str, mut params: CertificateParams) -> Result<Certificate> {
        params.distinguished_name.push(DnType::CommonName, name);
        let key = KeyPair::generate()?;
        let cert = params.signed_by(&key, &self.issuer)?;
        let files = Certificate {
            cert: self.folder.join(format!("{name}.crt")),
            key: self.folder.join(format!("{name}.key")),
        };
        write(&files.cert, &cert.pem())?;
        write(&files.key, &key.serialize_pem())?;
        Ok(files)
    }
}

/// A pair of keys without a certificate, the public one in the field `cert`: for the tokens of service accounts.
pub fn key_pair(folder: &Path, name: &str) -> Result<Certificate> {
    let pair = KeyPair::generate()?;
    let files =
        Certificate { cert: folder.join(format!("{name}.pub")), key: folder.join(format!("{name}.key")) };
    write(&files.cert, &pair.public_key_pem())?;
    write(&files.key, &pair.serialize_pem())?;
    Ok(files)
}

fn write(path: &Path, text: &str) -> Result<()> {
    fs::write(path, text).with_context(|| format!("cannot write {}", path.display()))
}
