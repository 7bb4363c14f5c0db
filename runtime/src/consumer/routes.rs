//! The routes of a consumer: the handler and the destination of each message.

use deadpool_postgres::Pool;
use idem_client::Destination;

use super::selector::Selector;
use crate::{
    Error, Handled, Idem, Message, Tx,
    handler::{ErasedHandler, erase},
    lease::LeaseContext,
    policy::{check_checked, check_leased},
    process::check_counted,
};

/// The routes in their order, with the fallback for messages that match no route.
#[derive(Default)]
pub(super) struct Routes(Vec<Entry>);

/// A route as the user gave it. The destination is checked when the consumer starts to run.
struct Entry {
    /// `None` for the fallback.
    selector: Option<Selector>,
    destination: Result<Destination, Error>,
    action: RouteAction,
}

/// What the consumer does with the messages of a route.
pub(super) enum RouteAction {
    /// Handles each message in the transaction that claims it.
    Handle(ErasedHandler<Tx>),
    /// Stores the messages in the inbox. They are handled later.
    Store,
    /// Handles each message without a transaction, under a lease.
    Leased(ErasedHandler<LeaseContext>),
    /// Handles each message without a transaction, and claims it after that.
    Checked(ErasedHandler<()>),
}

impl RouteAction {
    pub(super) fn checked<F, Fut>(handler: F) -> Self
    where
        F: Fn(Message) -> Fut + Send + Sync + 'static,
        Fut: Future<Output = Handled> + Send + 'static,
    {
        Self::Checked(erase(move |(), message| handler(message)))
    }
}

impl Entry {
    /// Returns the name of the destination for an error message.
    fn name(&self) -> String {
        match &self.destination {
            Ok(destination) => format!("{:?}", destination.as_str()),
            Err(_) => "a destination without a valid name".to_owned(),
        }
    }
}

impl Routes {
    /// Adds a route, or the fallback if there is no selector.
    pub(super) fn add(
        &mut self,
        selector: Option<Selector>,
        destination: &str,
        action: RouteAction,
    ) {
        self.0.push(Entry {
            selector,
            destination: Destination::new(destination).map_err(Into::into),
            action,
        });
    }

    /// Checks the routes and returns the table for look-ups. Returns [`Error::Invalid`] if there is
    /// no handler, two handlers take the same messages, a destination is invalid, or a policy does
    /// not fit its handler.
    pub(super) fn check(mut self, idem: &Idem, pool: &Pool) -> Result<Table, Error> {
        self.check_selectors()?;
        self.0.sort_by_key(|entry| entry.selector.is_none());
        let routes = self.0.into_iter();
        let table: Vec<Route> = routes
            .enumerate()
            .map(|(number, entry)| {
                Ok(Route {
                    number,
                    selector: entry.selector,
                    destination: entry.destination?,
                    action: entry.action,
                })
            })
            .collect::<Result<_, Error>>()?;
        for route in &table {
            let policy = &idem
                .settings()
                .policies
                .of(route.destination.as_str())
                .policy;
            let checked = match route.action {
                RouteAction::Leased(_) => check_leased(policy),
                RouteAction::Handle(_) => check_counted(policy, pool),
                RouteAction::Checked(_) => check_checked(policy),
                RouteAction::Store => Ok(()),
            };
            checked.map_err(|why| {
                Error::Invalid(format!(
                    "destination {:?}: {why}",
                    route.destination.as_str()
                ))
            })?;
        }
        if table.is_empty() {
            return Err(Error::Invalid(
                "the consumer has no handler (add one with `handle` or `route`)".into(),
            ));
        }
        Ok(Table(table))
    }

    /// Returns an error if two routes take the same messages: the second would never run.
    fn check_selectors(&self) -> Result<(), Error> {
        for (number, route) in self.0.iter().enumerate() {
            let is_same = |earlier: &&Entry| match (&earlier.selector, &route.selector) {
                (Some(one), Some(other)) => one.is_same_as(other),
                (one, other) => one.is_none() && other.is_none(),
            };
            let Some(earlier) = self.0[..number].iter().find(is_same) else {
                continue;
            };
            let (one, other) = (earlier.name(), route.name());
            return Err(Error::Invalid(match &route.selector {
                Some(selector) => {
                    format!("two routes take the messages of {selector:?}: {one} and {other}")
                }
                None => format!(
                    "two handlers take the messages that match no route: {one} and {other} \
                     (add all but one of them with `route` and a selector)"
                ),
            }));
        }
        Ok(())
    }
}

const UNROUTED: &str = ".unrouted";

/// The checked routes.
pub(super) struct Table(Vec<Route>);

impl Table {
    /// Returns the first route that takes this message. A message from a durable inbox goes only to
    /// the handlers of the inbox's destination, if this consumer has such handlers. The headers of
    /// the message may match other routes, but only a claim for this destination removes the
    /// message from the inbox.
    pub(super) fn find(&self, message: &Message) -> Option<&Route> {
        let of_inbox: Vec<&Route> = match message.stored() {
            Some(stored) => self
                .handlers()
                .filter(|route| route.destination == stored.destination)
                .collect(),
            None => Vec::new(),
        };
        match &of_inbox[..] {
            [] => self.0.iter().find(|route| route.takes(message)),
            [only] => Some(only),
            routes => routes.iter().copied().find(|route| route.takes(message)),
        }
    }

    /// Returns the destinations that have a handler in this consumer, without duplicates.
    pub(super) fn handled(&self) -> Vec<Destination> {
        let mut handled: Vec<Destination> = Vec::new();
        for route in self.handlers() {
            if !handled.contains(&route.destination) {
                handled.push(route.destination.clone());
            }
        }
        handled
    }

    /// Returns the destination of each route, ordered by route number.
    pub(super) fn destinations(&self) -> impl Iterator<Item = &Destination> {
        self.0.iter().map(|route| &route.destination)
    }

    fn handlers(&self) -> impl Iterator<Item = &Route> {
        self.0
            .iter()
            .filter(|route| !matches!(route.action, RouteAction::Store))
    }

    /// Returns the destination under which messages without a route are kept. This destination is
    /// separate, so that the ids of these messages cannot conflict with ids of other destinations.
    pub(super) fn unrouted(&self) -> Result<Destination, Error> {
        let first = self
            .0
            .first()
            .map_or("idem", |route| route.destination.as_str());
        Ok(Destination::new(format!("{first}{UNROUTED}"))
            .or_else(|_| Destination::new(format!("idem{UNROUTED}")))?)
    }
}

pub(super) struct Route {
    pub(super) number: usize,
    selector: Option<Selector>,
    pub(super) destination: Destination,
    pub(super) action: RouteAction,
}

impl Route {
    fn takes(&self, message: &Message) -> bool {
        self.selector
            .as_ref()
            .is_none_or(|selector| selector.takes(message))
    }
}
