//! Certificate authorities for tests, and the certificates that they sign.

use std::fs::{self, Permissions};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU32, Ordering};

use anyhow::{Context, Result};
use idem_cluster::Home;
use rcgen::{
    BasicConstraints, CertificateParams, CertifiedIssuer, DnType, ExtendedKeyUsagePurpose, IsCa,
    KeyPair,
};
use time::{Duration, OffsetDateTime};

/// A certificate authority with its own directory, which is removed when this value is dropped.
pub struct Authority {
    issuer: CertifiedIssuer<'static, KeyPair>,
    home: Home,
}

/// The files of one certificate and of its key, in PEM.
#[derive(Clone, Debug)]
pub struct Certified {
    pub certificate: PathBuf,
    /// Its private key.
    pub key: PathBuf,
}

/// The validity of a certificate.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Validity {
    /// From yesterday to tomorrow.
    Now,
    /// Until an hour ago.
    Expired,
}

impl Authority {
    /// Creates an authority that no client trusts yet.
    pub fn create() -> Result<Self> {
        // Each authority has a different name: if two authorities had the same name, a client could
        // check a certificate with the key of the wrong authority.
        static NUMBER: AtomicU32 = AtomicU32::new(1);
        let name = format!(
            "idem test authority {}",
            NUMBER.fetch_add(1, Ordering::Relaxed)
        );
        let mut params = params(&[], &name, Validity::Now)?;
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        let issuer = CertifiedIssuer::self_signed(params, KeyPair::generate()?)?;
        let home = Home::create("authority")?;
        // Servers that run as another user read these files.
        for dir in [home.dir(), home.dir().parent().unwrap_or(home.dir())] {
            fs::set_permissions(dir, Permissions::from_mode(0o755))?;
        }
        let authority = Self { issuer, home };
        write(&authority.ca(), &authority.issuer.pem())?;
        Ok(authority)
    }

    /// Returns the file of the authority's own certificate.
    #[must_use]
    pub fn ca(&self) -> PathBuf {
        self.home.dir().join("ca.pem")
    }

    /// Returns the directory of the files.
    #[must_use]
    pub fn dir(&self) -> &Path {
        self.home.dir()
    }

    /// Signs a server certificate for these host names and addresses.
    pub fn server(&self, names: &[&str], validity: Validity) -> Result<Certified> {
        let name = names.first().copied().unwrap_or("server");
        self.sign(names, name, validity, ExtendedKeyUsagePurpose::ServerAuth)
    }

    /// Signs a client certificate with this common name.
    pub fn client(&self, name: &str) -> Result<Certified> {
        self.sign(
            &[],
            name,
            Validity::Now,
            ExtendedKeyUsagePurpose::ClientAuth,
        )
    }

    fn sign(
        &self,
        names: &[&str],
        name: &str,
        validity: Validity,
        usage: ExtendedKeyUsagePurpose,
    ) -> Result<Certified> {
        let key = KeyPair::generate()?;
        let mut params = params(names, name, validity)?;
        params.extended_key_usages = vec![usage];
        let certificate = params.signed_by(&key, &self.issuer)?;
        let file = |suffix: &str| {
            self.home
                .dir()
                .join(format!("{name}-{validity:?}{suffix}.pem"))
        };
        let certified = Certified {
            certificate: file(""),
            key: file(".key"),
        };
        write(&certified.certificate, &certificate.pem())?;
        write(&certified.key, &key.serialize_pem())?;
        Ok(certified)
    }
}

fn params(names: &[&str], common_name: &str, validity: Validity) -> Result<CertificateParams> {
    let names: Vec<_> = names.iter().map(|name| (*name).to_owned()).collect();
    let mut params = CertificateParams::new(names)?;
    params
        .distinguished_name
        .push(DnType::CommonName, common_name);
    let now = OffsetDateTime::now_utc();
    params.not_before = now - Duration::days(1);
    params.not_after = match validity {
        Validity::Now => now + Duration::days(1),
        Validity::Expired => now - Duration::hours(1),
    };
    Ok(params)
}

fn write(file: &Path, text: &str) -> Result<()> {
    fs::write(file, text).with_context(|| format!("cannot write {}", file.display()))
}
