//! Servers, pools, listeners and the engine out of service and back, and the end of their open connections.

use std::fmt;
use std::sync::PoisonError;
use std::time::{Duration, Instant};

use splice::standby::{MOST_CLOSINGS, Service};

use super::{SILENCE, Watch};
use crate::commands::Closing;
use crate::config::{Config, ListenerConfig, ServerConfig, Standing};

/// What an operator speaks of. The name is one of the configuration.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Subject<'a> {
    /// A server.
    Server(&'a str),
    /// All servers of a pool.
    Pool(&'a str),
    /// A listener.
    Listener(&'a str),
    /// All of the engine.
    Engine,
}

impl<'a> Subject<'a> {
    /// By the words that [`fmt::Display`] writes.
    ///
    /// # Errors
    /// A sentence: that is none of these.
    pub fn new(what: &str, name: &'a str) -> Result<Self, String> {
        match what {
            "server" => Ok(Self::Server(name)),
            "pool" => Ok(Self::Pool(name)),
            "listener" => Ok(Self::Listener(name)),
            "engine" if name.is_empty() => Ok(Self::Engine),
            "engine" => Err("the engine has no name here".to_owned()),
            _ => Err(format!("{what} is none of server, pool, listener, engine")),
        }
    }
}

impl fmt::Display for Subject<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Server(name) => write!(f, "server {name}"),
            Self::Pool(name) => write!(f, "pool {name}"),
            Self::Listener(name) => write!(f, "listener {name}"),
            Self::Engine => f.write_str("engine"),
        }
    }
}

/// What a subject is by its numbers.
enum Numbers {
    Servers(Vec<u16>),
    Listener(u16),
    Engine,
}

/// For how long the number of a closing is not another's, beyond its time: cores look through all places before and after.
const LINGERS: Duration = Duration::from_secs(60);

/// When the numbers of closings are free again, by number less one.
#[derive(Debug, Default)]
pub(super) struct ClosingNumbers(Vec<Instant>);

impl ClosingNumbers {
    /// One that nobody has, for so long.
    fn take(&mut self, now: Instant, over: Duration) -> Option<u8> {
        let until = now.checked_add(over + LINGERS)?;
        let place = match self.0.iter().position(|until| *until <= now) {
            Some(free) => free,
            None if self.0.len() < usize::from(MOST_CLOSINGS) => {
                self.0.push(now);
                self.0.len() - 1
            }
            None => return None,
        };
        self.0[place] = until;
        u8::try_from(place + 1).ok()
    }
}

impl Watch {
    /// Takes something out of service, or back: out of service it gets no new connection, and open ones go on.
    ///
    /// # Errors
    /// A sentence: there is nothing of that name.
    pub fn set_service(&self, subject: Subject<'_>, service: Service) -> Result<(), String> {
        let standby = &self.shared.standby;
        match numbers(&self.config(), subject)? {
            Numbers::Servers(servers) => servers
                .into_iter()
                .for_each(|server| standby.set_server(server, service)),
            Numbers::Listener(listener) => standby.set_listener(listener, service),
            Numbers::Engine => standby.set_engine(service),
        }
        Ok(())
    }

    /// Whether there is something of this name.
    ///
    /// # Errors
    /// A sentence: there is not.
    pub fn find(&self, subject: Subject<'_>) -> Result<(), String> {
        numbers(&self.config(), subject).map(drop)
    }

    /// Has all servers and listeners of the file and the engine in service or out, as these say in their order. What none of them names
    /// is in service.
    pub fn set_services(&self, all: &[(Subject<'_>, Service)]) {
        let config = self.config();
        let mut servers = vec![Service::In; config.servers().len()];
        let mut listeners = vec![Service::In; config.listeners().len()];
        let mut engine = Service::In;
        for (subject, service) in all {
            match numbers(&config, *subject) {
                Ok(Numbers::Servers(of_it)) => of_it.iter().for_each(|server| servers[usize::from(*server)] = *service),
                Ok(Numbers::Listener(listener)) => listeners[usize::from(listener)] = *service,
                Ok(Numbers::Engine) => engine = *service,
                // DNS may name it again.
                Err(_) => {}
            }
        }
        let standby = &self.shared.standby;
        for (of, service) in config.servers().iter().zip(servers) {
            if of.standing == Standing::InFile && standby.of_server(of.id.0) != service {
                standby.set_server(of.id.0, service);
            }
        }
        for (of, service) in config.listeners().iter().zip(listeners) {
            if of.standing == Standing::InFile {
                standby.set_listener(of.id.0, service);
            }
        }
        standby.set_engine(engine);
    }

    /// Has all cores end the open connections of what is out of service, evenly over a time or, if there is none, as fast as they
    /// can; does not wait for that. A closing of it that is under way is over.
    ///
    /// # Errors
    /// A sentence: there is nothing of that name, it is in service, too many closings are under way, or a core does not come round.
    pub fn close(&self, subject: Subject<'_>, over: Duration) -> Result<(), String> {
        let standby = &self.shared.standby;
        let numbers = numbers(&self.config(), subject)?;
        let is_out = match &numbers {
            Numbers::Servers(servers) => servers.iter().all(|server| standby.has_server(*server)),
            Numbers::Listener(listener) => standby.has_listener(*listener),
            Numbers::Engine => standby.has_engine(),
        };
        if !is_out {
            return Err(format!("{subject} is in service: it would get new connections"));
        }
        let mut closings = self.shared.closings.lock().unwrap_or_else(PoisonError::into_inner);
        let number = closings.take(Instant::now(), over);
        let number = number.ok_or_else(|| format!("{MOST_CLOSINGS} closings are under way"))?;
        match numbers {
            Numbers::Servers(servers) => servers.iter().for_each(|server| standby.close_server(*server, number)),
            Numbers::Listener(listener) => standby.close_listener(listener, number),
            Numbers::Engine => standby.close_engine(number),
        }
        for (core, commander) in self.cores().zip(&self.shared.commanders) {
            let mut commander = commander.lock().unwrap_or_else(PoisonError::into_inner);
            let closed = commander.close(Closing { number, over }, SILENCE);
            closed.map_err(|error| format!("core {core}: {error}"))?;
        }
        Ok(())
    }
}

/// What a name of this configuration stands for.
fn numbers(config: &Config, subject: Subject<'_>) -> Result<Numbers, String> {
    let unknown = || format!("there is no {subject}");
    Ok(match subject {
        Subject::Server(name) => {
            let is_it = |of: &&ServerConfig| of.standing == Standing::InFile && of.name == name;
            let server = config.servers().iter().find(is_it).ok_or_else(unknown)?;
            Numbers::Servers(vec![server.id.0])
        }
        Subject::Pool(name) => {
            let pool = config.find_pool(name).ok_or_else(unknown)?;
            let members = config.pool(pool).members.iter();
            Numbers::Servers(members.map(|member| member.server.0).collect())
        }
        Subject::Listener(name) => {
            let is_it = |of: &&ListenerConfig| of.standing == Standing::InFile && of.name == name;
            let listener = config.listeners().iter().find(is_it).ok_or_else(unknown)?;
            Numbers::Listener(listener.id.0)
        }
        Subject::Engine => Numbers::Engine,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_closing_has_a_number_of_its_own_until_it_is_over() {
        let (mut numbers, now, hour) = (ClosingNumbers::default(), Instant::now(), Duration::from_secs(3600));
        let taken: Vec<_> = (0..MOST_CLOSINGS).filter_map(|_| numbers.take(now, hour)).collect();
        assert_eq!(taken, (1..=MOST_CLOSINGS).collect::<Vec<_>>());
        assert_eq!(numbers.take(now, hour), None);
        assert_eq!(numbers.take(now + hour + LINGERS, hour), Some(1));
    }
}
