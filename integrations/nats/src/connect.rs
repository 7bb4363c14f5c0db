//! Connects with the login and the TLS settings of the configuration.

use std::{fs, path::Path, time::Duration};

use async_nats::{
    ConnectOptions,
    jetstream::{Context, context::ContextBuilder},
};
use idem_runtime::{
    Error,
    transport::{TransportError, check_setting, tls::Files},
};
use nkeys::KeyPair;

use super::{NatsConfig, servers::Servers};

impl NatsConfig {
    /// Checks the settings and reads every file that they name.
    ///
    /// # Errors
    ///
    /// [`Error::Invalid`] if a number, the URL or a file cannot be used. The error names the
    /// setting or the file and contains no secret.
    pub fn check(&self) -> Result<(), Error> {
        self.options(ConnectOptions::new()).map(drop)
    }

    /// Connects. From then on the client library reconnects by itself when the connection is lost.
    pub(super) async fn connect_with(
        &self,
        options: ConnectOptions,
        role: &str,
    ) -> Result<Context, TransportError> {
        let timeout = Duration::from_secs(self.timeout_s.into());
        let (options, servers) = self.options(options)?;
        let client = options
            .name(format!("idem {role}"))
            .connection_timeout(timeout)
            .request_timeout(Some(timeout))
            .connect(servers.addresses)
            .await?;
        Ok(ContextBuilder::new()
            .timeout(timeout)
            .max_ack_inflight(self.max_unconfirmed.into())
            .build(client))
    }

    fn options(&self, options: ConnectOptions) -> Result<(ConnectOptions, Servers), Error> {
        check_setting("timeout_s", self.timeout_s, 1..=3600)?;
        check_setting("max_unconfirmed", self.max_unconfirmed, 1..=u16::MAX)?;
        let mut servers = Servers::parse(&self.url)?;
        let files = Files {
            ca: self.ca.as_deref(),
            certificate: self.client_certificate.as_deref(),
            key: self.client_key.as_deref(),
        };
        if files.is_any() && !servers.has_tls {
            return Err(Error::Invalid(
                "the NATS settings name certificate files, but no URL is tls://".into(),
            ));
        }
        // Set this also without `tls://`, because a server can require TLS, and then the default of
        // the client library panics.
        let options = options
            .require_tls(servers.has_tls)
            .tls_client_config(files.verify_full()?);
        // A server announces other servers before TLS begins. An attacker on the network can add
        // servers to this list, also ws:// servers, so ignore the list.
        let options = if servers.has_tls {
            options.ignore_discovered_servers()
        } else {
            options
        };
        let login = servers.login.take();
        let options = match (login, &self.nkey_seed_file, &self.credentials) {
            (None, None, None) => options,
            (Some(login), None, None) => login.apply(options),
            (None, Some(file), None) => options.nkey(seed(file)?),
            (None, None, Some(file)) => {
                let text = read(file)?;
                // The error of the client library could contain a part of the file, so it is not
                // used.
                let options = options.credentials(&text);
                options.map_err(|_| unusable(file, "it has no JWT and no seed of a NATS user"))?
            }
            _ => {
                return Err(Error::Invalid(
                    "the NATS settings have several logins; use only one of: a login in the URL, \
                     nkey-seed-file, credentials"
                        .into(),
                ));
            }
        };
        Ok((options, servers))
    }
}

/// Returns the seed of a user from a file: the first line that begins with `SU`.
fn seed(file: &Path) -> Result<String, Error> {
    let text = read(file)?;
    let seed = text
        .lines()
        .map(str::trim)
        .find(|line| line.starts_with("SU"));
    // The client library parses the seed only when it connects, so check the seed here.
    seed.filter(|seed| KeyPair::from_seed(seed).is_ok())
        .map(str::to_owned)
        .ok_or_else(|| {
            unusable(
                file,
                "it has no valid seed of a NATS user, which begins with SU",
            )
        })
}

fn read(file: &Path) -> Result<String, Error> {
    fs::read_to_string(file).map_err(|error| unusable(file, &error.to_string()))
}

fn unusable(file: &Path, reason: &str) -> Error {
    Error::Invalid(format!(
        "cannot use {} to log in to NATS: {reason}",
        file.display()
    ))
}
