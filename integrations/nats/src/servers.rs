//! Parses the servers and the login in the URL setting.

use async_nats::{ConnectOptions, ServerAddr};
use idem_runtime::{
    Error,
    transport::{check_login, percent},
};

/// The servers of one cluster, without the login in their URLs.
#[derive(Clone)]
pub(super) struct Servers {
    pub(super) addresses: Vec<ServerAddr>,
    /// Whether a URL begins with `tls://`. TLS is then required for all servers.
    pub(super) has_tls: bool,
    pub(super) login: Option<Login>,
}

/// A login in a URL. It is sent in plain text unless the connection uses TLS.
#[derive(Clone, PartialEq, Eq)]
pub(super) enum Login {
    User(String, String),
    Token(String),
}

impl Servers {
    /// Parses URLs that are separated by commas. An error does not contain the URLs, because they
    /// can contain a password.
    pub(super) fn parse(urls: &str) -> Result<Self, Error> {
        let mut servers = Self {
            addresses: Vec::new(),
            has_tls: false,
            login: None,
        };
        for (number, url) in urls.split(',').map(str::trim).enumerate() {
            servers.add(url).map_err(|reason| {
                let place = number + 1;
                Error::Invalid(format!(
                    "URL {place} of the NATS servers cannot be used: {reason}"
                ))
            })?;
        }
        Ok(servers)
    }

    fn add(&mut self, url: &str) -> Result<(), String> {
        check_login(url)?;
        let address: ServerAddr = url.parse().map_err(|_| "it is not a URL".to_owned())?;
        if address.is_websocket() {
            return Err("ws:// and wss:// are not supported; use nats:// or tls://".into());
        }
        if address.host().is_empty() {
            return Err("it has no host".into());
        }
        self.has_tls |= address.tls_required();
        if let Some(login) = Login::of(&address)? {
            // The client library uses one login for all servers, also for those that the cluster
            // announces.
            if self.login.as_ref().is_some_and(|known| *known != login) {
                return Err("its login differs from that of another URL".into());
            }
            self.login = Some(login);
        }
        self.addresses.push(without_login(address)?);
        Ok(())
    }
}

impl Login {
    fn of(address: &ServerAddr) -> Result<Option<Self>, String> {
        let decode =
            |text: &str| percent::decode(text).ok_or("the percent-encoding of its login is wrong");
        let user = address.username().map(decode).transpose()?;
        let password = address.password().map(decode).transpose()?;
        Ok(match (user, password) {
            (None, None) => None,
            (Some(token), None) => Some(Self::Token(token)),
            (user, Some(password)) => Some(Self::User(user.unwrap_or_default(), password)),
        })
    }

    pub(super) fn apply(self, options: ConnectOptions) -> ConnectOptions {
        match self {
            Self::User(user, password) => options.user_and_password(user, password),
            Self::Token(token) => options.token(token),
        }
    }
}

/// Removes the login from an address, because the client library logs addresses.
fn without_login(address: ServerAddr) -> Result<ServerAddr, String> {
    let mut url = address.into_inner();
    url.set_username("")
        .and_then(|()| url.set_password(None))
        .map_err(|()| "its login cannot be read")?;
    ServerAddr::from_url(url).map_err(|error| error.to_string())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn logins_are_removed_from_the_urls() {
        let servers = Servers::parse("nats://rita:p%40ss@a:1, tls://b").unwrap();
        assert!(servers.has_tls);
        assert!(servers.login == Some(Login::User("rita".into(), "p@ss".into())));
        let shown = format!("{:?}", servers.addresses);
        assert!(
            !shown.contains("rita") && !shown.contains("p%40ss"),
            "{shown}"
        );
        assert!(Servers::parse("s3cret@a").unwrap().login == Some(Login::Token("s3cret".into())));
        assert!(!Servers::parse("a:1").unwrap().has_tls);
    }
}
