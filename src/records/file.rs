//! Records to a file or standard output, with rotation.

use std::fs::{self, File};
use std::io::{self, BufWriter, Write};
use std::os::unix::fs::{FileTypeExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Instant;

use netfcts::format::{NameTable, RecordLines};
use netfcts::record::SessionRecord;

use super::sink::{Fate, Keeps, Output};
use crate::config::Rotation;

/// Lines to a file. A disk that is full keeps them in the buffer for the next attempt.
pub(super) struct Lines {
    lines: RecordLines,
    out: BufWriter<Box<dyn Write + Send>>,
    /// `None` if it is no file.
    file: Option<Named>,
    /// Records in the buffer.
    pending: u64,
}

/// A file under its name.
struct Named {
    path: PathBuf,
    identity: Option<(u64, u64)>,
    rotation: Rotation,
    /// Bytes written to it, those in the buffer included.
    bytes: u64,
    since: Instant,
}

impl Lines {
    /// Lines to what is open already.
    ///
    /// # Errors
    /// The header cannot be written.
    pub(super) fn to(sink: Box<dyn Write + Send>, lines: RecordLines) -> io::Result<Lines> {
        let mut out = BufWriter::new(sink);
        out.write_all(lines.header().as_bytes())?;
        Ok(Lines {
            lines,
            out,
            file: None,
            pending: 0,
        })
    }

    /// Lines to a new file. One of that name that is not empty is put aside as `PATH.1`.
    ///
    /// # Errors
    /// It cannot be created.
    pub(super) fn create(path: &Path, rotation: Rotation, lines: RecordLines) -> io::Result<Lines> {
        if fs::metadata(path).is_ok_and(|metadata| metadata.is_file() && metadata.len() > 0) {
            put_aside(path, rotation.keep)?;
        }
        // It is empty, or new; a sink that a reload ends may still have something for it.
        let file = open(path)?;
        let is_file = file.metadata()?.is_file();
        let mut lines = Lines::to(Box::new(file), lines)?;
        lines.file = Some(Named {
            path: path.to_owned(),
            identity: identity(path),
            // A device or a pipe cannot be put aside.
            rotation: if is_file { rotation } else { Rotation::default() },
            bytes: 0,
            since: Instant::now(),
        });
        Ok(lines)
    }

    /// Puts the file aside if it is large or old enough.
    fn rotate(&mut self, fate: &Fate) -> io::Result<()> {
        let Some(file) = &self.file else { return Ok(()) };
        let rotation = file.rotation;
        let is_full = rotation.size.is_some_and(|size| file.bytes >= size);
        let is_old = rotation.every.is_some_and(|every| file.since.elapsed() >= every);
        if file.bytes == 0 || !(is_full || is_old) {
            return Ok(());
        }
        self.write_out(fate)?;
        let Some(file) = &mut self.file else { return Ok(()) };
        // Somebody else has renamed it: there is nothing to put aside.
        if file.identity == identity(&file.path)
            && let Err(error) = put_aside(&file.path, rotation.keep)
        {
            let path = file.path.display();
            log::error!("{path} cannot be put aside: {error}; session records go on to it");
            (file.bytes, file.since) = (0, Instant::now());
            return Ok(());
        }
        // What is there now is of the sink that a reload is putting in this one's place.
        if let Err(error) = self.open_anew(Keeps::All)
            && let Some(file) = &mut self.file
        {
            let path = file.path.display();
            log::error!("{path} cannot be opened anew: {error}; session records go on to the file that was put aside");
            (file.bytes, file.since) = (0, Instant::now());
        }
        Ok(())
    }

    fn write_out(&mut self, fate: &Fate) -> io::Result<()> {
        self.out.flush()?;
        fate.write(std::mem::take(&mut self.pending));
        Ok(())
    }

    /// To be called when nothing is pending.
    fn open_anew(&mut self, keeps: Keeps) -> io::Result<()> {
        let Some(file) = &mut self.file else { return Ok(()) };
        let new = open(&file.path)?;
        if keeps == Keeps::Nothing {
            new.set_len(0)?;
        }
        let is_empty = new.metadata()?.len() == 0;
        let mut out: BufWriter<Box<dyn Write + Send>> = BufWriter::new(Box::new(new));
        if is_empty {
            out.write_all(self.lines.header().as_bytes())?;
        }
        self.out = out;
        (file.identity, file.bytes, file.since) = (identity(&file.path), 0, Instant::now());
        Ok(())
    }
}

impl Output for Lines {
    fn set_names(&mut self, names: &Arc<NameTable>) {
        self.lines.set_names(Arc::clone(names));
    }

    fn put(&mut self, record: &SessionRecord, fate: &Fate) -> io::Result<()> {
        let line = self.lines.line(record);
        if let Err(error) = self.out.write_all(line.as_bytes()) {
            fate.lose(1);
            return Err(error);
        }
        self.pending += 1;
        if let Some(file) = &mut self.file {
            file.bytes += line.len() as u64;
            if file.rotation.size.is_some_and(|size| file.bytes >= size) {
                return self.rotate(fate);
            }
        }
        Ok(())
    }

    fn flush(&mut self, fate: &Fate) -> io::Result<()> {
        self.write_out(fate)?;
        self.rotate(fate)
    }

    fn pending(&self) -> u64 {
        self.pending
    }

    fn reopen(&mut self, keeps: Keeps, fate: &Fate) -> bool {
        // What could not be written is in the buffer: it is lost only if the disk takes it never.
        let flushed = self.write_out(fate);
        let Some(file) = &self.file else { return true };
        if file.identity == identity(&file.path) {
            return true;
        }
        if flushed.is_err() {
            return false;
        }
        let path = file.path.clone();
        match self.open_anew(keeps) {
            Ok(()) => log::info!("session records go on in a new {}", path.display()),
            Err(error) => log::error!(
                "{} cannot be opened again: {error}; records go on to the old file",
                path.display()
            ),
        }
        true
    }
}

/// Permissions of a new file, which names clients: for its owner and group.
const MODE: u32 = 0o640;

/// Opens a file to write behind what is there, or a new one. A pipe is opened to be read, too: otherwise this would wait for a reader, and
/// a reader that goes would end it (fifo(7)).
fn open(path: &Path) -> io::Result<File> {
    let is_pipe = fs::metadata(path).is_ok_and(|metadata| metadata.file_type().is_fifo());
    let mut options = File::options();
    options.append(true).create(true).read(is_pipe).mode(MODE);
    options.open(path)
}

/// Which file a name leads to: device and inode.
fn identity(path: &Path) -> Option<(u64, u64)> {
    let metadata = fs::metadata(path).ok()?;
    Some((metadata.dev(), metadata.ino()))
}

/// Renames `PATH` to `PATH.1`, and before that `PATH.1` to `PATH.2`, up to `keep`; the last one goes.
fn put_aside(path: &Path, keep: u8) -> io::Result<()> {
    let numbered = |number: u8| {
        let mut name = path.as_os_str().to_owned();
        name.push(format!(".{number}"));
        PathBuf::from(name)
    };
    for number in (1..keep).rev() {
        match fs::rename(numbered(number), numbered(number + 1)) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
            _ => (),
        }
    }
    fs::rename(path, numbered(1))
}

#[cfg(test)]
mod tests {
    use super::*;
    use netfcts::format::{NameTable, RecordFormat};
    use std::sync::atomic::{AtomicBool, Ordering};

    /// Full while it is said to be.
    struct Disk(Arc<AtomicBool>);

    impl Write for Disk {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            match self.0.load(Ordering::Relaxed) {
                true => Err(io::ErrorKind::StorageFull.into()),
                false => Ok(bytes.len()),
            }
        }

        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    /// Somebody has renamed the file and asks for a new one while the disk is full: that is begun when the old one is whole.
    #[test]
    fn a_file_is_opened_again_once_the_disk_has_room() {
        let dir = tempfile::tempdir().expect("temporary directory");
        let path = dir.path().join("records");
        fs::write(&path, "").expect("write");
        let is_full = Arc::new(AtomicBool::new(false));
        let lines = RecordLines::new(RecordFormat::JsonLines, Arc::new(NameTable::default()), 1);
        let mut output = Lines::to(Box::new(Disk(Arc::clone(&is_full))), lines).expect("no header");
        output.file = Some(Named {
            path: path.clone(),
            identity: identity(&path),
            rotation: Rotation {
                size: None,
                every: None,
                keep: 0,
            },
            bytes: 0,
            since: Instant::now(),
        });
        let fate = Fate::default();
        output.out.write_all(b"a record\n").expect("into the buffer");
        fs::rename(&path, dir.path().join("moved")).expect("rename");
        is_full.store(true, Ordering::Relaxed);
        assert!(!output.reopen(Keeps::All, &fate));
        assert!(!path.exists());
        is_full.store(false, Ordering::Relaxed);
        assert!(output.reopen(Keeps::All, &fate));
        assert!(path.exists());
    }
}
