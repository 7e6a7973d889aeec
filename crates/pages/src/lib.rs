//! Manual pages and completions, from the command line that a program itself takes: they cannot say anything else.
//!
//! ```text
//! clap::Command ─► write ─► FOLDER/man/NAME.1, NAME-run.1, …
//!                           FOLDER/bash/NAME.bash  FOLDER/zsh/_NAME  FOLDER/fish/NAME.fish
//! ```
//!
//! Who calls it: the hidden command `generate` of the programs, when packages are made of them; [`commands`], the tests that
//! hold what documents have a reader type against the programs.

mod documents;

pub use documents::commands;

use std::fs;
use std::io;
use std::path::Path;

use clap::Command;
use clap_complete::Shell;

/// Writes all of it below a folder, which is made. Equal for equal command lines: there is no date in it.
///
/// # Errors
///
/// A folder or file that cannot be written.
pub fn write(command: Command, folder: &Path) -> io::Result<()> {
    // A page of `help` would say what --help says.
    let mut command = command.disable_help_subcommand(true);
    let name = command.get_name().to_owned();
    let pages = folder.join("man");
    fs::create_dir_all(&pages)?;
    clap_mangen::generate_to(command.clone(), &pages)?;
    for (shell, place) in [(Shell::Bash, "bash"), (Shell::Zsh, "zsh"), (Shell::Fish, "fish")] {
        let place = folder.join(place);
        fs::create_dir_all(&place)?;
        clap_complete::generate_to(shell, &mut command, &name, place)?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_visible_command_has_a_page_and_each_shell_its_completions() {
        let command = Command::new("tool")
            .about("Does something")
            .subcommand(
                Command::new("run")
                    .about("Runs it")
                    .arg(clap::arg!(--fast "without looking")),
            )
            .subcommand(Command::new("secret").hide(true));
        let folder = tempfile::tempdir().expect("a folder");
        write(command, folder.path()).expect("written");
        let read = |file: &str| fs::read_to_string(folder.path().join(file));
        let page = read("man/tool-run.1").expect("a page");
        assert!(
            page.contains(".TH tool-run 1") && page.contains("without looking"),
            "{page}"
        );
        assert!(read("man/tool.1").expect("a page").contains("Does something"));
        assert!(read("man/tool-secret.1").is_err() && read("man/tool-help.1").is_err());
        for file in ["bash/tool.bash", "zsh/_tool", "fish/tool.fish"] {
            assert!(read(file).expect("completions").contains("fast"), "{file}");
        }
    }
}
