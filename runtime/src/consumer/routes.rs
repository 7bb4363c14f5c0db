//! The routes of a consumer: the handler and the destination of each message.

use std::collections::BTreeSet;

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

/// The routes of a consumer. [`check`](Self::check) puts the fallback last.
#[derive(Default)]
pub(super) struct Routes {
    routes: Vec<Route>,
    /// The first destination whose name is not valid.
    invalid: Option<Error>,
}

pub(super) struct Route {
    /// `None` for the fallback.
    selector: Option<Selector>,
    pub(super) destination: Destination,
    pub(super) action: RouteAction,
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

impl Route {
    fn takes(&self, message: &Message) -> bool {
        let selector = self.selector.as_ref();
        selector.is_none_or(|selector| selector.takes(message))
    }

    /// Returns the reason if the policy does not fit the handler.
    fn check(&self, idem: &Idem, pool: &Pool) -> Result<(), String> {
        let policies = &idem.settings().policies;
        let policy = &policies.of(self.destination.as_str()).policy;
        match self.action {
            RouteAction::Leased(_) => check_leased(policy),
            RouteAction::Handle(_) => check_counted(policy, pool),
            RouteAction::Checked(_) => check_checked(policy),
            RouteAction::Store => Ok(()),
        }
    }
}

const UNROUTED: &str = ".unrouted";

impl Routes {
    /// Adds a route, or the fallback if there is no selector.
    pub(super) fn add(
        &mut self,
        selector: Option<Selector>,
        destination: &str,
        action: RouteAction,
    ) {
        match Destination::new(destination) {
            Ok(destination) => self.routes.push(Route {
                selector,
                destination,
                action,
            }),
            Err(error) => self.invalid = self.invalid.take().or(Some(error.into())),
        }
    }

    /// Checks the routes. Returns [`Error::Invalid`] if there is no handler, two handlers take the
    /// same messages, a destination is invalid, or a policy does not fit its handler.
    pub(super) fn check(mut self, idem: &Idem, pool: &Pool) -> Result<Self, Error> {
        if let Some(error) = self.invalid.take() {
            return Err(error);
        }
        self.check_selectors()?;
        self.routes.sort_by_key(|route| route.selector.is_none());
        for route in &self.routes {
            route.check(idem, pool).map_err(|why| {
                let destination = route.destination.as_str();
                Error::Invalid(format!("destination {destination:?}: {why}"))
            })?;
        }
        if self.routes.is_empty() {
            return Err(Error::Invalid(
                "the consumer has no handler (add one with `handle` or `route`)".into(),
            ));
        }
        Ok(self)
    }

    /// Returns an error if two routes take the same messages: the second would never run.
    fn check_selectors(&self) -> Result<(), Error> {
        for (number, route) in self.routes.iter().enumerate() {
            let is_same = |earlier: &&Route| match (&earlier.selector, &route.selector) {
                (Some(one), Some(other)) => one.is_same_as(other),
                (one, other) => one.is_none() && other.is_none(),
            };
            let Some(earlier) = self.routes[..number].iter().find(is_same) else {
                continue;
            };
            let (one, other) = (earlier.destination.as_str(), route.destination.as_str());
            return Err(Error::Invalid(match &route.selector {
                Some(selector) => {
                    format!("two routes take the messages of {selector:?}: {one:?} and {other:?}")
                }
                None => format!(
                    "two handlers take the messages that match no route: {one:?} and {other:?} \
                     (add all but one of them with `route` and a selector)"
                ),
            }));
        }
        Ok(())
    }

    /// Returns the first route that takes this message. A message from a durable inbox goes only to
    /// the handlers of the inbox's destination, if this consumer has such handlers. The headers of
    /// the message may match other routes, but only a claim for this destination removes the
    /// message from the inbox.
    pub(super) fn find(&self, message: &Message) -> Option<&Route> {
        let of_inbox: Vec<&Route> = match message.stored() {
            Some(stored) => self
                .handlers()
                .filter(|route| route.destination == *stored.held.destination())
                .collect(),
            None => Vec::new(),
        };
        match &of_inbox[..] {
            [] => self.routes.iter().find(|route| route.takes(message)),
            [only] => Some(only),
            routes => routes.iter().copied().find(|route| route.takes(message)),
        }
    }

    /// Returns the destinations that have a handler in this consumer.
    pub(super) fn handled(&self) -> BTreeSet<Destination> {
        let handled = self.handlers().map(|route| route.destination.clone());
        handled.collect()
    }

    pub(super) fn destinations(&self) -> impl Iterator<Item = &Destination> {
        self.routes.iter().map(|route| &route.destination)
    }

    fn handlers(&self) -> impl Iterator<Item = &Route> {
        let routes = self.routes.iter();
        routes.filter(|route| !matches!(route.action, RouteAction::Store))
    }

    /// Returns the destination under which messages without a route are kept. This destination is
    /// separate, so that the ids of these messages cannot conflict with ids of other destinations.
    pub(super) fn unrouted(&self) -> Result<Destination, Error> {
        let first = self.routes.first();
        let first = first.map_or("idem", |route| route.destination.as_str());
        Ok(Destination::new(format!("{first}{UNROUTED}"))
            .or_else(|_| Destination::new(format!("idem{UNROUTED}")))?)
    }
}
