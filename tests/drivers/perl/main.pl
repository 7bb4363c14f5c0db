#!/usr/bin/perl
# Executes statements with DBD::Pg. Reads requests from the standard input and writes replies to the
# standard output, as tests/drivers/README.md describes.

use strict;
use warnings;

use DBD::Pg qw(:pg_types);
use DBI;
use JSON::PP;
use MIME::Base64;

$| = 1;
# Requests and replies are UTF-8.
my $json = JSON::PP->new->utf8;
# DBD::Pg reads and writes characters, so the text of a JSON value is not encoded.
my $value_json = JSON::PP->new->allow_nonref;
my %sessions;

while (my $line = <STDIN>) {
    my $request = $json->decode($line);
    my $reply = exists $request->{sql} ? execute($request) : close_all();
    print $json->encode($reply), "\n";
}

sub execute {
    my ($request) = @_;
    my $session = $sessions{ $request->{session} } //= DBI->connect('dbi:Pg:', undef, undef,
        { AutoCommit => 1, RaiseError => 1, PrintError => 0, PrintWarn => 0 });
    my $rows = eval { rows($session, $request->{sql}, @{ $request->{arguments} }) };
    return { rows => $rows } if $rows;
    die $@ unless $session->err;
    return {
        error => {
            sqlstate => $session->state,
            hint => $session->pg_error_field('hint'),
            message => $session->pg_error_field('message_primary'),
        },
    };
}

sub rows {
    my ($session, $sql, @arguments) = @_;
    # Without this attribute DBD::Pg takes ? and :name for placeholders too.
    my $statement = $session->prepare($sql, { pg_placeholder_dollaronly => 1 });
    bind_argument($statement, $_ + 1, $arguments[$_]) for 0 .. $#arguments;
    $statement->execute;
    return [] unless $statement->{NUM_OF_FIELDS};
    my @types = @{ $statement->{pg_type} };
    return [
        map { my $row = $_; [ map { cell($row->[$_], $types[$_]) } 0 .. $#types ] }
            @{ $statement->fetchall_arrayref }
    ];
}

sub bind_argument {
    my ($statement, $n, $argument) = @_;
    if (JSON::PP::is_bool($argument)) {
        $statement->bind_param($n, $argument ? 't' : 'f');
    }
    elsif (ref $argument ne 'HASH') {
        $statement->bind_param($n, $argument);
    }
    elsif (exists $argument->{json}) {
        $statement->bind_param($n, $value_json->encode($argument->{json}));
    }
    else {
        $statement->bind_param($n, decode_base64($argument->{bytes}), { pg_type => PG_BYTEA });
    }
}

# Returns a value of a result as it is written in a reply.
sub cell {
    my ($value, $type) = @_;
    return undef unless defined $value;
    return [ map { cell($_, $type =~ s/^_|\[\]$//gr) } @$value ] if ref $value eq 'ARRAY';
    return $value ? JSON::PP::true : JSON::PP::false if $type eq 'bool';
    return $value + 0 if $type =~ /^int[248]$/;
    return { bytes => encode_base64($value, '') } if $type eq 'bytea';
    return { json => $value_json->decode($value) } if $type =~ /^jsonb?$/;
    return $value;
}

sub close_all {
    $_->disconnect for values %sessions;
    %sessions = ();
    return {};
}
