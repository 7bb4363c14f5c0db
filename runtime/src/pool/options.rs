//! Parses connection strings into options: URLs and key=value pairs, as libpq does.
//!
//! Errors never repeat a part of the text, because a text with a syntax error can contain a
//! password.

use std::{iter::Peekable, str::Chars};

use crate::{Error, transport::percent};

/// The options that `tokio-postgres` reads.
const PASSED_ON: [&str; 18] = [
    "user",
    "password",
    "dbname",
    "options",
    "application_name",
    "sslnegotiation",
    "host",
    "hostaddr",
    "port",
    "connect_timeout",
    "tcp_user_timeout",
    "keepalives",
    "keepalives_idle",
    "keepalives_interval",
    "keepalives_retries",
    "target_session_attrs",
    "channel_binding",
    "load_balance_hosts",
];

/// The options that are read here and not passed on.
const OWN: [&str; 4] = ["sslmode", "sslrootcert", "sslcert", "sslkey"];

/// Options by name. A later value replaces an earlier one.
#[derive(Clone, Default)]
pub(super) struct Options(Vec<(&'static str, String)>);

impl Options {
    pub(super) fn parse(text: &str) -> Result<Self, Error> {
        let url = ["postgres://", "postgresql://"]
            .iter()
            .find_map(|scheme| text.strip_prefix(scheme));
        match url {
            Some(rest) => Self::parse_url(rest),
            None => Self::parse_pairs(text),
        }
    }

    pub(super) fn get(&self, name: &str) -> Option<&str> {
        let found = self.0.iter().find(|(known, _)| *known == name);
        found.map(|(_, value)| value.as_str())
    }

    /// Returns all elements of a comma-separated list.
    pub(super) fn list(&self, name: &str) -> Vec<&str> {
        self.get(name)
            .map(|value| value.split(',').collect())
            .unwrap_or_default()
    }

    pub(super) fn remove(&mut self, name: &str) {
        self.0.retain(|(known, _)| *known != name);
    }

    pub(super) fn set(&mut self, name: &'static str, value: impl Into<String>) {
        self.remove(name);
        self.0.push((name, value.into()));
    }

    /// Returns the options for `tokio-postgres`, as key=value pairs.
    pub(super) fn passed_on(&self) -> String {
        let quote = |value: &str| value.replace('\\', "\\\\").replace('\'', "\\'");
        let pairs = self.0.iter().filter(|(name, _)| !OWN.contains(name));
        pairs
            .map(|(name, value)| format!("{name}='{}' ", quote(value)))
            .collect()
    }

    /// Adds an option. `place` is the position of the option. An option of libpq that is not
    /// supported is an error, because a connection without it could be less secure. The error
    /// contains the position and not the name.
    fn add(&mut self, name: &str, value: String, place: usize) -> Result<(), Error> {
        let Some(known) = PASSED_ON.iter().chain(&OWN).find(|known| **known == name) else {
            return Err(invalid(&format!(
                "the name of option {place} is unknown or not supported"
            )));
        };
        self.set(known, value);
        Ok(())
    }

    fn parse_url(rest: &str) -> Result<Self, Error> {
        let mut options = Self::default();
        let (place, query) = rest.split_once('?').unwrap_or((rest, ""));
        let (authority, database) = place.split_once('/').unwrap_or((place, ""));
        let (login, hosts) = authority.split_once('@').unwrap_or(("", authority));
        if hosts.contains('@') || database.contains('@') {
            return Err(invalid(
                "it has more than one @; in a user or password, write @ as %40 and / as %2F",
            ));
        }
        let (user, password) = login.split_once(':').unwrap_or((login, ""));
        for (name, value) in [("user", user), ("password", password), ("dbname", database)] {
            if !value.is_empty() {
                options.set(name, decode(value)?);
            }
        }
        if !hosts.is_empty() {
            options.add_hosts(hosts)?;
        }
        for (number, pair) in query.split('&').filter(|pair| !pair.is_empty()).enumerate() {
            let Some((name, value)) = pair.split_once('=') else {
                return Err(invalid(&format!("option {} has no `=`", number + 1)));
            };
            options.add(&decode(name)?, decode(value)?, number + 1)?;
        }
        Ok(options)
    }

    fn add_hosts(&mut self, hosts: &str) -> Result<(), Error> {
        let mut names = Vec::new();
        let mut ports = Vec::new();
        for host in hosts.split(',') {
            // An IPv6 address contains colons, and is written in brackets.
            let (name, port) = match host.strip_prefix('[') {
                Some(bracketed) => {
                    let (name, rest) = bracketed
                        .split_once(']')
                        .ok_or_else(|| invalid("a bracket is not closed"))?;
                    (name, rest.strip_prefix(':').unwrap_or(rest))
                }
                None => host.split_once(':').unwrap_or((host, "")),
            };
            names.push(decode(name)?);
            ports.push(decode(port)?);
        }
        self.set("host", names.join(","));
        if ports.iter().any(|port| !port.is_empty()) {
            self.set("port", ports.join(","));
        }
        Ok(())
    }

    fn parse_pairs(text: &str) -> Result<Self, Error> {
        let mut options = Self::default();
        let mut rest = text.chars().peekable();
        for number in 1.. {
            skip_spaces(&mut rest);
            if rest.peek().is_none() {
                break;
            }
            let name = take_while(&mut rest, |c| c != '=' && !c.is_whitespace());
            skip_spaces(&mut rest);
            if rest.next() != Some('=') {
                return Err(invalid(&format!("option {number} has no `=`")));
            }
            skip_spaces(&mut rest);
            let value = value(&mut rest)
                .ok_or_else(|| invalid(&format!("option {number} has an unclosed quote")))?;
            options.add(&name, value, number)?;
        }
        Ok(options)
    }
}

/// Reads a value, in quotes or up to the next space; `None` if the quote is not closed.
fn value(rest: &mut Peekable<Chars<'_>>) -> Option<String> {
    let is_quoted = rest.next_if_eq(&'\'').is_some();
    let mut value = String::new();
    loop {
        match rest.next() {
            Some('\'') if is_quoted => return Some(value),
            Some(c) if !is_quoted && c.is_whitespace() => return Some(value),
            Some('\\') => value.extend(rest.next()),
            Some(c) => value.push(c),
            None => return (!is_quoted).then_some(value),
        }
    }
}

fn skip_spaces(rest: &mut Peekable<Chars<'_>>) {
    take_while(rest, char::is_whitespace);
}

fn take_while(rest: &mut Peekable<Chars<'_>>, is_part: impl Fn(char) -> bool) -> String {
    std::iter::from_fn(|| rest.next_if(|c| is_part(*c))).collect()
}

fn decode(text: &str) -> Result<String, Error> {
    percent::decode(text).ok_or_else(|| invalid("its percent-encoding is wrong; write % as %25"))
}

pub(super) fn invalid(reason: &str) -> Error {
    Error::Invalid(format!(
        "the connection string of the database cannot be used: {reason}"
    ))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn all(text: &str) -> Vec<(&'static str, String)> {
        let mut options = Options::parse(text).unwrap().0;
        options.sort();
        options
    }

    #[test]
    fn url_and_key_value_pairs_give_the_same_options() {
        let url = "postgresql://ann%40x:p%2Fw%25%20d@db1:1,[::1]:2/shop\
                   ?sslmode=verify-ca&sslrootcert=/a%20b.pem";
        let pairs = "user = ann@x password='p/w% d' host=db1,::1 port=1,2 dbname=shop \
                     sslmode=verify-ca sslrootcert='/a b.pem'";
        assert_eq!(all(url), all(pairs));
        assert_eq!(Options::parse(url).unwrap().get("password"), Some("p/w% d"));
        assert_eq!(
            all("postgres:///shop?host=%2Ftmp")[1],
            ("host", "/tmp".to_owned())
        );
        assert_eq!(all(r"password='it\'s \\' host=a\ b")[1].1, r"it's \");
    }

    #[test]
    fn later_value_replaces_an_earlier_one() {
        assert_eq!(all("host=a host=b"), [("host", "b".to_owned())]);
        assert_eq!(all("postgres://a/?host=b"), [("host", "b".to_owned())]);
    }

    #[test]
    fn passed_on_options_are_unchanged() {
        let options =
            Options::parse(r"host=db user=ann password='it\'s \\' sslmode=verify-ca sslkey=x")
                .unwrap();
        let config: tokio_postgres::Config = options.passed_on().parse().unwrap();
        assert_eq!(config.get_password(), Some(r"it's \".as_bytes()));
        assert_eq!(config.get_user(), Some("ann"));
    }

    #[test]
    fn error_repeats_nothing_of_the_text() {
        for text in [
            "postgres://u:sec%ret@db",
            "postgres://u:se@cret@db",
            "postgres://u:se/cret@db",
            "postgres://db/?secret",
            "postgres://db/?secret=1",
            "host=db password=my secret",
            "host=db password=my secret=1",
            "host=db password='secret",
            "host=db sslpassword=secret",
        ] {
            let error = Options::parse(text)
                .err()
                .map(|error| format!("{error} {error:?}"));
            let error = error.unwrap_or_else(|| panic!("{text} is accepted"));
            assert!(!error.contains("cret"), "{error}");
        }
    }
}
