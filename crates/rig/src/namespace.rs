//! Where on the rig something runs, and how to get there: a program by `ip netns exec`, a closure by moving a thread.

use std::fs::File;
use std::os::fd::AsFd;
use std::process::Command;

use rustix::thread::{LinkNameSpaceType, move_into_link_name_space};

use crate::RigError;

/// A network namespace of the rig.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Place {
    /// Where the engine runs, alone with its ports.
    Engine,
    /// The clients' Linux stack.
    Clients,
    /// The servers' Linux stack.
    Servers,
    /// The bridges between them: captures and losses happen here, unnoticed by either end.
    Switch,
    /// Behind the servers, on a rig that has been given a far host, [`crate::Rig::add_far_host`]; or behind the routers,
    /// on one that has been given these, [`crate::Rig::add_routers`].
    Far,
    /// The first of two routers between the engine and the far host.
    FirstRouter,
    /// The second.
    SecondRouter,
}

impl Place {
    /// Every namespace that a rig is raised with.
    pub const ALL: [Self; 4] = [Self::Engine, Self::Clients, Self::Servers, Self::Switch];

    /// The namespace's name on the rig called `prefix`.
    pub fn name(self, prefix: &str) -> String {
        let suffix = match self {
            Self::Engine => "engine",
            Self::Clients => "clients",
            Self::Servers => "servers",
            Self::Switch => "switch",
            Self::Far => "far",
            Self::FirstRouter => "router1",
            Self::SecondRouter => "router2",
        };
        format!("{prefix}-{suffix}")
    }
}

/// A command that runs `program` in the namespace. `ip` becomes the program, so the process is the program's.
pub(crate) fn command_in(namespace: &str, program: &str) -> Command {
    let mut command = Command::new("ip");
    command.args(["netns", "exec", namespace, program]);
    command
}

/// Runs `work` on a thread of its own that is in the namespace; sockets made there stay there wherever they are used.
pub(crate) fn run_in<T: Send>(namespace: &str, work: impl FnOnce() -> T + Send) -> Result<T, RigError> {
    let path = format!("/run/netns/{namespace}");
    let handle = File::open(&path).map_err(RigError::io(format!("opening {path}")))?;
    std::thread::scope(|scope| {
        let thread = scope.spawn(move || {
            move_into_link_name_space(handle.as_fd(), Some(LinkNameSpaceType::Network))
                .map_err(|error| RigError::io(format!("entering {path}"))(error.into()))?;
            Ok(work())
        });
        thread.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))
    })
}
