//! Certificates and keys in PEM files. Errors name the file and never show its content.

use std::{fs, path::Path};

use rustls::{
    RootCertStore,
    pki_types::{
        CertificateDer, PrivateKeyDer,
        pem::{self, PemObject},
    },
};

use crate::Error;

/// Reads the certificates to trust.
pub(super) fn roots(file: &Path) -> Result<RootCertStore, Error> {
    let mut roots = RootCertStore::empty();
    for certificate in certificates(file)? {
        roots.add(certificate).map_err(|error| {
            unusable(
                file,
                &format!("it contains a certificate that is not valid: {error}"),
            )
        })?;
    }
    Ok(roots)
}

/// Reads all certificates, at least one.
pub(super) fn certificates(file: &Path) -> Result<Vec<CertificateDer<'static>>, Error> {
    let text = read(file)?;
    let certificates = CertificateDer::pem_slice_iter(&text)
        .collect::<Result<Vec<_>, _>>()
        .map_err(|_| unusable(file, "it is not PEM"))?;
    if certificates.is_empty() {
        return Err(unusable(file, "it has no certificate"));
    }
    Ok(certificates)
}

/// Reads the first private key.
pub(super) fn key(file: &Path) -> Result<PrivateKeyDer<'static>, Error> {
    PrivateKeyDer::from_pem_slice(&read(file)?).map_err(|error| match error {
        pem::Error::NoItemsFound => unusable(
            file,
            "it has no private key (an encrypted key cannot be read)",
        ),
        _ => unusable(file, "it is not PEM"),
    })
}

fn read(file: &Path) -> Result<Vec<u8>, Error> {
    fs::read(file).map_err(|error| unusable(file, &error.to_string()))
}

fn unusable(file: &Path, reason: &str) -> Error {
    Error::Invalid(format!("cannot use {} for TLS: {reason}", file.display()))
}
